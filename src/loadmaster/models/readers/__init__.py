"""Where a model is read from: ``read_model`` tells the kinds of source apart and asks the reader for that kind."""

from __future__ import annotations

from pathlib import Path

from loadmaster.errors import BadFileError
from loadmaster.models.spec import ModelSpec


def read_model(source: str | None, *, params: str | None = None) -> ModelSpec:
    """Read a model from a folder, a config.json, a .safetensors or .gguf file (headers only), a catalogue name or a
    Hugging Face id; or, with ``params`` alone (``7B``), assume a Llama-like network of that size.

    Raises a UsageError in one sentence for anything that is not a model, OfflineError when the hub is needed and
    can't be reached.
    """
    from loadmaster.models.readers import catalogue, config_json

    if source is None:
        raise BadFileError(source, "not a model")
    path = Path(source)
    if path.suffix == ".json":
        return config_json.read(path)
    return catalogue.read(source)
