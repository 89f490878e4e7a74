"""Granite 3: Llama's network with scaling factors."""

from loadmaster.models.families.llama import read as read
from loadmaster.models.families.llama import text as text
