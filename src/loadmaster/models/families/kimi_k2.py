"""Kimi K2: DeepSeek-V3's code with other numbers."""

from loadmaster.models.families.deepseek_v2 import read as read
from loadmaster.models.families.deepseek_v2 import text as text
