"""XLM-RoBERTa: RoBERTa with a larger vocabulary."""

from loadmaster.models.families.bert import read

__all__ = ["read"]
