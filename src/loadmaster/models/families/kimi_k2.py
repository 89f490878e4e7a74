"""Kimi K2: DeepSeek-V3's code with other numbers."""

from loadmaster.models.families.deepseek_v3 import read, text

__all__ = ["read", "text"]
