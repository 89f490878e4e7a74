"""Reads the headers of GGUF files: metadata and tensor descriptions, never a tensor's bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError, UnknownNameError
from loadmaster.models.readers.headers import DIMENSION_LIMIT, Stub, TensorFile, file_size, stored
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

BLOCKS = {
    0: ("float32", 1, 4), 1: ("float16", 1, 2), 30: ("bfloat16", 1, 2), 28: ("float64", 1, 8),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip
"""ggml's tensor types: name, values in a block, bytes of a block (gguf-py/gguf/constants.py, GGML_QUANT_SIZES)."""

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip
"""llama.cpp's names for a file's mix of types (llama.h, enum llama_ftype)."""

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
ITEM_LIMIT = 16_000_000
"""Most metadata values that are walked over; the largest vocabularies with merges have under a million."""
TENSOR_LIMIT = 200_000
TEXT_LIMIT = 1_000_000


class _Cursor:
    """Reads forward through a mapped file and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.items = path, data, 0, 0

    def take(self, count: int) -> int:
        """Step over ``count`` bytes; returns where they start."""
        start = self.at
        if count < 0 or count > len(self.data) - start:
            raise BadFileError(self.path, "is cut short or corrupt: its header runs past the end of the file")
        self.at = start + count
        return start

    def number(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > TEXT_LIMIT:
            self.take(length)
            return ""
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", "replace")

    def count(self, more: int) -> None:
        """Bound the work: every value of the metadata counts."""
        self.items += more
        if self.items > ITEM_LIMIT:
            raise BadFileError(
                self.path, f"claims more than {ITEM_LIMIT} metadata values, which no model has"
            )

    def value(self, kind: int) -> Any:
        """One metadata value; of an array its length and, where it is short and of numbers, its values."""
        self.count(1)
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise BadFileError(self.path, f"has metadata of the unknown type {kind}")
        inner, length = self.number("<I"), self.number("<Q")
        if inner in _SCALARS:
            code = _SCALARS[inner]
            size = struct.calcsize(code)
            # A length beyond the file is refused by ``take`` before anything is built from it.
            start = self.take(length * size)
            if length > 4096:
                return _Long(length)
            return list(struct.unpack_from(f"<{length}{code[1]}", self.data, start))
        if inner != _STRING:
            raise BadFileError(self.path, f"has an array of the unknown type {inner}")
        self.count(length)
        for _ in range(length):
            self.take(self.number("<Q"))
        return _Long(length)


class _Long:
    """An array that was stepped over: only its length is kept."""

    def __init__(self, length: int) -> None:
        self.length = length


def read(path: Path) -> ModelSpec:
    """The ModelSpec of a GGUF file; an architecture that has no family is read by its tensors' names."""
    metadata, file = read_header(path)
    from loadmaster.models.readers import generic
    from loadmaster.models.readers.gguf_config import config_fields

    kind = metadata.get("general.file_type")
    quantization = _FILE_TYPES.get(kind) if isinstance(kind, int) else None
    held = replace(stored([file]), parameters=sum(stub.values for stub in file.stubs))
    try:
        fields = config_fields(path, metadata, file)
        from loadmaster.models.readers.config_json import from_fields

        spec = from_fields(fields, str(path))
        # Unknown fields would be our own: a metadata field goes to every config field that it could be.
        spec = replace(spec, stored=held, warnings=tuple(_differences(spec, file)))
    except UnknownNameError as error:
        spec = generic.read([file], str(path), model_type=error.name)
        warnings = tuple(line for line in spec.warnings if "packed" not in line)
        spec = replace(
            spec, stored=held, warnings=(f"{error}; read from the tensor names instead", *warnings)
        )
    name = metadata.get("general.name")
    plain = quantization in ("F32", "F16", "BF16")
    dtype = max(held.by_dtype_bytes, key=held.by_dtype_bytes.__getitem__, default=None)
    return replace(
        spec,
        name=name[:120] if isinstance(name, str) and name else path.name,
        stored_dtype=dtype if plain else None,
        quantization=None if plain else quantization or dtype,
    )


def _differences(spec: ModelSpec, file: TensorFile) -> list[str]:
    from loadmaster.models.parameters import parameter_count

    # Rotary factors of Llama 3 are stored as a tensor but are no parameters.
    values = sum(stub.values for stub in file.stubs if not stub.name.startswith("rope_"))
    described = parameter_count(spec)
    if values == described:
        return []
    return [
        f"the file holds {values:,} parameters, its metadata describes {described:,} ({values - described:+,})"
    ]


def read_header(path: Path) -> tuple[dict[str, Any], TensorFile]:
    """Metadata and tensors of a GGUF file; raises BadFileError for anything out of order."""
    size = file_size(path)
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF" or size < 24:
                raise BadFileError(path, "is not a GGUF file (it doesn't begin with GGUF)")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _header(_Cursor(path, data), size)
    except (OSError, ValueError) as error:
        raise BadFileError(path, f"cannot be read ({error})") from None


def _header(cursor: _Cursor, size: int) -> tuple[dict[str, Any], TensorFile]:
    cursor.take(4)
    version = cursor.number("<I")
    if version not in (2, 3):
        raise BadFileError(cursor.path, f"is GGUF version {version}; versions 2 and 3 are read")
    tensors, pairs = cursor.number("<Q"), cursor.number("<Q")
    if tensors > TENSOR_LIMIT or pairs > TENSOR_LIMIT:
        raise BadFileError(
            cursor.path, f"claims {tensors} tensors and {pairs} metadata fields, which no model has"
        )
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.text()
        if key in metadata:
            raise BadFileError(cursor.path, f"has the metadata field {key[:60]!r} twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    described = [_tensor(cursor) for _ in range(tensors)]
    align = metadata.get("general.alignment", 32)
    if type(align) is not int or not 0 < align <= 65536:
        raise BadFileError(cursor.path, f"has an impossible alignment {str(align)[:40]!r}")
    data = -(-cursor.at // align) * align
    position = 0
    for offset, stub in sorted(described, key=lambda pair: pair[0]):
        if offset < position or data + offset + stub.size_bytes > size:
            what = "overlap" if offset < position else "run past the end of the file: it is cut short"
            raise BadFileError(cursor.path, f"its tensors {what} (at {stub.name[:80]!r})")
        position = offset + stub.size_bytes
    stubs = tuple(stub for _, stub in described)
    if len({stub.name for stub in stubs}) != len(stubs):
        raise BadFileError(cursor.path, "has two tensors of one name")
    return metadata, TensorFile(path=str(cursor.path), size_bytes=size, stubs=stubs)


def _tensor(cursor: _Cursor) -> tuple[int, Stub]:
    name = cursor.text()
    axes = cursor.number("<I")
    if axes > 8:
        raise BadFileError(cursor.path, f"tensor {name[:80]!r} has {axes} axes")
    # GGUF writes the fastest axis first; everywhere else here it is last.
    shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
    kind, offset = cursor.number("<I"), cursor.number("<Q")
    if kind not in BLOCKS:
        raise BadFileError(cursor.path, f"tensor {name[:80]!r} has the unknown type {kind}")
    dtype, block, size_bytes = BLOCKS[kind]
    values = prod(shape)
    if any(side > DIMENSION_LIMIT for side in shape) or (shape and shape[-1] % block):
        raise BadFileError(cursor.path, f"tensor {name[:80]!r} has an impossible shape for {dtype}")
    return offset, Stub(name=name, dtype=dtype, shape=shape, size_bytes=values // block * size_bytes)
