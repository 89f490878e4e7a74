"""Reads the headers of safetensors files: eight bytes of length, then JSON. No tensor's bytes are read.

Format: https://github.com/huggingface/safetensors (README, "Format"); limits as in its reader (tensor.rs).
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError
from loadmaster.models.readers.config_json import load_text, parse
from loadmaster.models.readers.headers import Stub, TensorFile, file_size, shape_of, why_not
from loadmaster.models.readers.pickles import is_pickle, refuse_pickle

HEADER_LIMIT_BYTES = 100_000_000
"""MAX_HEADER_SIZE of the safetensors library: a longer header is refused, so that none can fill the memory."""
INDEX_LIMIT_BYTES = 100_000_000

_FORMATS = {
    "F64": ("float64", 64), "F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3", 8), "F8_E5M2": ("float8_e5m2", 8), "F8_E8M0": ("float8_e8m0", 8),
    "F8_E4M3FNUZ": ("float8_e4m3", 8), "F8_E5M2FNUZ": ("float8_e5m2", 8),
    "F6_E2M3": ("float6_e2m3", 6), "F6_E3M2": ("float6_e3m2", 6), "F4": ("float4_e2m1", 4),
    "I64": ("int64", 64), "I32": ("int32", 32), "I16": ("int16", 16), "I8": ("int8", 8),
    "U64": ("uint64", 64), "U32": ("uint32", 32), "U16": ("uint16", 16), "U8": ("uint8", 8),
    "BOOL": ("bool", 8), "C64": ("complex64", 64),
}  # fmt: skip
"""Format names of the header: our name and bits a value (safetensors, tensor.rs, enum Dtype)."""


def read_file(path: Path) -> TensorFile:
    """The tensors of one file by its header; raises BadFileError for anything out of order."""
    size = file_size(path)
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = _header_length(path, start, size)
            data = file.read(length)
    except OSError as error:
        raise BadFileError(path, f"cannot be read ({error.strerror or error})") from None
    if not data.startswith(b"{"):
        if is_pickle(start):
            raise refuse_pickle(path)
        raise BadFileError(path, "is not a safetensors file (its header is no JSON object)")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadFileError(path, "has a header that is not UTF-8 text") from None
    return TensorFile(
        path=str(path), size_bytes=size, stubs=_stubs(path, parse(text, str(path)), size - 8 - length)
    )


def _header_length(path: Path, start: bytes, size: int) -> int:
    """The length in the first eight bytes; what it can't be is told apart from a pickle under the wrong name."""
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    possible = len(start) == 8 and length <= min(HEADER_LIMIT_BYTES, size - 8)
    if not possible and is_pickle(start):
        raise refuse_pickle(path)
    if len(start) < 8:
        raise BadFileError(path, f"has {size} bytes, too few for a safetensors header")
    if length > HEADER_LIMIT_BYTES:
        raise BadFileError(path, f"claims a header of {length} bytes; the format allows {HEADER_LIMIT_BYTES}")
    if length > size - 8:
        raise BadFileError(path, f"is cut short: its header has {length} bytes, the file {size}")
    return int(length)


def _stubs(path: Path, header: dict[str, Any], data_bytes: int) -> tuple[Stub, ...]:
    header.pop("__metadata__", None)
    stubs, spans = [], []
    for name, entry in header.items():
        begin, end, stub = _stub(path, name, entry)
        if end > data_bytes:
            raise BadFileError(
                path, f"is cut short or corrupt: tensor {name[:80]!r} ends past the end of the file"
            )
        stubs.append(stub)
        spans.append((begin, end))
    # The format wants the tensors to fill the file without holes, so that nothing can hide between them.
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            what = "overlap" if begin < position else "leave a hole"
            raise BadFileError(path, f"is corrupt: its tensors {what} at byte {min(begin, position)}")
        position = end
    if position != data_bytes:
        raise BadFileError(path, f"is corrupt: {data_bytes - position} bytes behind the last tensor")
    return tuple(stubs)


def _stub(path: Path, name: str, entry: object) -> tuple[int, int, Stub]:
    if not isinstance(entry, dict):
        raise BadFileError(path, f"has no description of tensor {name[:80]!r}")
    shape = shape_of(path, name, entry.get("shape"))
    kind = entry.get("dtype")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise BadFileError(path, f"tensor {name[:80]!r} has the unknown number format {str(kind)[:40]!r}")
    dtype, bits = _FORMATS[kind]
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(x) is int for x in offsets):
        raise BadFileError(path, f"tensor {name[:80]!r} has no data_offsets")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise BadFileError(path, f"tensor {name[:80]!r} has impossible data_offsets")
    if (end - begin) * 8 != prod(shape) * bits:
        raise BadFileError(
            path, f"tensor {name[:80]!r}: its shape and format don't match its {end - begin} bytes"
        )
    return begin, end, Stub(name=name, dtype=dtype, shape=shape, size_bytes=end - begin)


def read_index(path: Path) -> tuple[TensorFile, ...]:
    """The tensors of a sharded model, by ``*.safetensors.index.json``: every shard's header, each read once."""
    index = parse(load_text(path, INDEX_LIMIT_BYTES), str(path))
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise BadFileError(path, "has no weight_map, so it is no index of safetensors files")
    names: dict[str, None] = {}
    for shard in where.values():
        # A shard lies beside its index; anything else would read outside the folder.
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise BadFileError(path, f"names a shard {str(shard)[:80]!r} that is no file beside it")
        names[shard] = None
    absent = [shard for shard in names if not (path.parent / shard).is_file()]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise BadFileError(path, f"names {absent[0][:80]}{more}: {why_not(path.parent / absent[0])}")
    files = tuple(read_file(path.parent / shard) for shard in names)
    held = {stub.name for file in files for stub in file.stubs}
    missing = [name for name in where if name not in held]
    if missing:
        raise BadFileError(
            path, f"names {len(missing)} tensors that its files don't have, such as {missing[0][:80]!r}"
        )
    return files
