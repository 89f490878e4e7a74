"""Granite 3: Llama's network with scaling factors."""

from loadmaster.models.families.llama import read, text

__all__ = ["read", "text"]
