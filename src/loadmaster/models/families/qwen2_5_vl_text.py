"""The decoder of Qwen 2.5 VL: Qwen 2's."""

from loadmaster.models.families.qwen2 import read as read
from loadmaster.models.families.qwen2 import text as text
