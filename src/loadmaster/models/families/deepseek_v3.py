"""DeepSeek-V3 and R1: as V2 but for its router, whose correction bias is a buffer."""

from loadmaster.models.families.deepseek_v2 import read, text

__all__ = ["read", "text"]
