"""XLM-RoBERTa: RoBERTa with a larger vocabulary."""

from loadmaster.models.families.bert import read as read
