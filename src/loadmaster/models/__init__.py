"""Models: readers for config, safetensors, GGUF and catalogue; families; parameters counted by role."""

from loadmaster.models.readers import read_model

__all__ = ["read_model"]
