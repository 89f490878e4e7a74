"""RoBERTa: BERT's network; its position table counts two rows for padding in max_position_embeddings."""

from loadmaster.models.families.bert import read

__all__ = ["read"]
