"""Where a program's config comes from: the fields of a config.json and the model's name. No torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError, UsageError
from loadmaster.models.readers import catalogue, config_json, guess, hub
from loadmaster.models.spec import Attention, Mlp, ModelSpec

TENSOR_FILES = (".gguf", ".safetensors")


def fields_of(source: str | Path | None = None, *, params: str | None = None) -> tuple[dict[str, Any], str]:
    """The config's fields and the model's name, for a catalogue name, a Hugging Face id, a folder or a config.json; with
    ``params`` alone (``7B``) a Llama of that size.

    Raises UsageError in one sentence where there is no config (a lone .gguf or .safetensors holds no network's code), and what
    ``read_model`` raises.
    """
    if source is None or not str(source).strip():
        if params is None:
            raise UsageError(
                "no model given", hint="give a name, a path, or --params with a number of parameters"
            )
        spec = guess.read(params)
        return llama_fields(spec), spec.name
    if params is not None:
        raise UsageError("give a model or --params, not both")
    text = str(source)
    path = Path(text).expanduser()
    looks_like_path = text.startswith((".", "/", "~")) or path.suffix.lower() in (".json", *TENSOR_FILES)
    if path.exists() or looks_like_path:
        return _from_path(path), text
    return _from_name(text)


def _from_path(path: Path) -> dict[str, Any]:
    if path.suffix.lower() in TENSOR_FILES:
        beside = path.with_name("config.json")
        if not beside.is_file():
            raise BadFileError(
                path, "holds tensors alone; a dry run builds the network's code, so it needs its config.json"
            )
        path = beside
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise BadFileError(path, "there is no config.json to build the network from")
    fields = config_json.parse(config_json.load_text(path, config_json.CONFIG_LIMIT_BYTES), str(path))
    if "_class_name" in fields:
        raise UsageError(
            f"{fields.get('_repo', path)} is diffusers' {fields['_class_name']}: a dry run builds transformers' models by name",
            hint="write a function that builds it, and name that: file.py:build",
        )
    return fields


def _from_name(name: str) -> tuple[dict[str, Any], str]:
    found = catalogue.find(name)
    if found is not None:
        return _from_path(catalogue.FOLDER / f"{found.replace('/', '__', 1)}.json"), found
    if not hub.is_id(name):
        catalogue.read(name)  # raises with the nearest names
    cached = hub._cached(name)
    path = cached / "config.json" if cached is not None else hub._download(name)
    return _from_path(path), name


def llama_fields(spec: ModelSpec) -> dict[str, Any]:
    """The config of a Llama shaped as an assumed spec (``--params 7B``)."""
    tower, head = spec.decoder, spec.head
    block = tower.blocks[0]
    mixer, mlp = block.mixer, block.feedforward
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, Mlp)
    assert head is not None
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": head.vocab,
        "hidden_size": tower.hidden,
        "intermediate_size": mlp.output.inputs,
        "num_hidden_layers": len(tower.layout),
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "tie_word_embeddings": head.tied,
    }


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without the catalogue's own notes, as a new object (transformers' configs keep what they are given)."""
    copied: dict[str, Any] = json.loads(
        json.dumps({k: v for k, v in fields.items() if not k.startswith("_")})
    )
    return copied
