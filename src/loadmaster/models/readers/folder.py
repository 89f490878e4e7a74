"""Reads a folder: its config, its tensor files' headers, or both set against each other."""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.errors import BadFileError, UnknownNameError
from loadmaster.models.readers import config_json, safetensors
from loadmaster.models.readers.compare import contradictions
from loadmaster.models.readers.headers import TensorFile, stored
from loadmaster.models.readers.pickles import PICKLES, refuse_pickle
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

FILES_LIMIT = 10_000
"""Most entries of a folder that are looked at: the largest published models have under 200 shards."""


def read(path: Path) -> ModelSpec:
    """The ModelSpec of a folder; raises BadFileError where there is nothing to read."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry, _ in zip(entries, range(FILES_LIMIT), strict=False))
    except OSError as error:
        raise BadFileError(path, f"cannot be read ({error.strerror or error})") from None
    files = _tensor_files(path, names)
    if "config.json" in names:
        return _both(path / "config.json", files)
    if "model_index.json" in names:
        return config_json.pipeline(path / "model_index.json")
    if files:
        from loadmaster.models.readers import generic

        return generic.read(files, str(path))
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if len(ggufs) == 1:
        from loadmaster.models.readers import gguf

        return gguf.read(path / ggufs[0])
    if ggufs:
        raise BadFileError(path, f"holds {len(ggufs)} GGUF files; name one, such as {ggufs[0]}")
    pickles = [name for name in names if name.lower().endswith(PICKLES)]
    if pickles:
        raise refuse_pickle(path / pickles[0])
    raise BadFileError(path, "holds no config.json, safetensors or GGUF file")


def _tensor_files(path: Path, names: list[str]) -> tuple[TensorFile, ...]:
    indexes = [name for name in names if name.endswith(".safetensors.index.json")]
    shards = [name for name in names if name.endswith(".safetensors")]
    others = {"config.json", "model_index.json"} & set(names) or any(name.endswith(".gguf") for name in names)
    if indexes and (shards or not others):
        # With several indexes (fp16 variants) the plain one is the model.
        return safetensors.read_index(path / min(indexes, key=len))
    if "model.safetensors" in shards:
        return (safetensors.read_file(path / "model.safetensors"),)
    if "adapter_config.json" in names and "config.json" not in names:
        raise BadFileError(
            path,
            "holds a LoRA adapter, not a model",
            hint="give the base model that adapter_config.json names",
        )
    return tuple(safetensors.read_file(path / name) for name in shards)


def _both(config: Path, files: tuple[TensorFile, ...]) -> ModelSpec:
    try:
        spec = config_json.read(config)
    except UnknownNameError as error:
        if error.kind != "model_type" or not files:
            raise
        from loadmaster.models.readers import generic

        spec = generic.read(files, str(config.parent), model_type=error.name)
        return replace(spec, warnings=(f"{error}; read from the tensor headers instead", *spec.warnings))
    return with_files(spec, files)


def with_files(spec: ModelSpec, files: tuple[TensorFile, ...]) -> ModelSpec:
    """The spec with what is stored, and a warning for each contradiction."""
    if not files:
        return spec
    stubs = [stub for file in files for stub in file.stubs]
    held = stored(files)
    if spec.quantization and spec.quantization != "fp8":
        held = replace(held, parameters=None)
    dtype = spec.stored_dtype or max(held.by_dtype_bytes, key=held.by_dtype_bytes.__getitem__, default=None)
    warnings = (*spec.warnings, *contradictions(spec, stubs))
    return replace(spec, stored=held, stored_dtype=dtype, warnings=warnings)
