"""Reads a config.json: strictly parsed JSON to the family's ModelSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError
from loadmaster.models import families
from loadmaster.models.config import Config
from loadmaster.models.readers.headers import why_not
from loadmaster.models.spec import ModelSpec

CONFIG_LIMIT_BYTES = 16_000_000
"""Largest config that is read: published ones stay below 200 kB, label maps included."""
VALUE_LIMIT = 5_000_000
"""Most values in a JSON file, so that it can't fill the memory: the longest published index has 91,991 tensors."""


def read(path: Path) -> ModelSpec:
    """The ModelSpec of a config file; raises BadFileError or UnknownNameError."""
    return from_fields(parse(load_text(path, CONFIG_LIMIT_BYTES), str(path)), str(path))


def from_fields(fields: Mapping[str, Any], origin: str) -> ModelSpec:
    """The ModelSpec of parsed config fields; ``origin`` is where they came from."""
    config = Config(fields, origin)
    # diffusers' configs have a class name instead of a model_type; its lower case is the family's file.
    kind = config.text("model_type", "_class_name", default="none")
    if not config.has("model_type") and not config.has("_class_name"):
        raise BadFileError(
            origin, "the config has neither model_type nor _class_name, so its network is unknown"
        )
    family = families.load(kind if config.has("model_type") else kind.lower(), origin=origin)
    try:
        spec = family.read(config)
    except BadFileError as error:
        # Shared builders know the numbers but not where they were read.
        if error.path != "config":
            raise
        raise BadFileError(origin, error.reason) from None
    if not isinstance(spec, ModelSpec):
        raise AssertionError(f"{family.__name__}.read returned no ModelSpec")
    return spec


def load_text(path: Path, limit_bytes: int) -> str:
    """The text of a small UTF-8 file, never more than ``limit_bytes`` of it."""
    try:
        if not path.is_file():
            raise BadFileError(path, why_not(path))
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise BadFileError(path, f"cannot be read ({error.strerror or error})") from None
    if len(data) > limit_bytes:
        raise BadFileError(path, f"has more than {limit_bytes} bytes, which no such file has")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadFileError(path, "is not UTF-8 text") from None


def parse(text: str, origin: str) -> dict[str, Any]:
    """A JSON object without duplicate keys and without deep nesting; NaN and Infinity stay floats for the door to
    refuse. Raises BadFileError."""
    if text.count(",") > VALUE_LIMIT:
        raise BadFileError(origin, f"holds more than {VALUE_LIMIT} values, which no model needs")
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, origin))
    except RecursionError:
        raise BadFileError(origin, "is nested deeper than any config or header") from None
    except ValueError as error:
        reason = str(error).splitlines()[0][:120]
        raise BadFileError(origin, f"is not valid JSON ({reason})") from None
    if not isinstance(found, dict):
        raise BadFileError(origin, "holds no JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]], origin: str) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise BadFileError(origin, f"has the key {twice[:60]!r} twice in one object")
    return fields


def pipeline(path: Path) -> ModelSpec:
    """The ModelSpec of an image pipeline's folder: ``model_index.json`` and the config of each network in it."""
    index = parse(load_text(path, CONFIG_LIMIT_BYTES), str(path))
    kind = index.get("_class_name")
    components: dict[str, Any] = {}
    for name, entry in list(index.items())[:64]:
        if (
            name.startswith("_")
            or not isinstance(entry, list)
            or len(entry) != 2
            or not isinstance(entry[1], str)
        ):
            continue
        file = path.parent / name / "config.json"
        # Schedulers, tokenizers and image processors have no config.json.
        if Path(name).name == name and file.is_file():
            fields = parse(load_text(file, CONFIG_LIMIT_BYTES), str(file))
            components[name] = {**fields, "_class_name": entry[1]}
    if not components:
        raise BadFileError(path, "names no component that has a config.json")
    fields = {"model_type": "diffusers_pipeline", "_class_name": kind, "components": components}
    return from_fields(fields, str(path.parent))
