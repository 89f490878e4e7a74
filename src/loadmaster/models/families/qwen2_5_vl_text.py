"""The decoder of Qwen 2.5 VL: Qwen 2's."""

from loadmaster.models.families.qwen2 import read, text

__all__ = ["read", "text"]
