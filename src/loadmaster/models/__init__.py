"""Models: readers for config, safetensors, GGUF and catalogue; families; parameters counted by role."""

from loadmaster.models.readers import read_model as read_model
