"""Writes small safetensors and GGUF files by hand, whole or broken."""

from __future__ import annotations

import json
import struct
from math import prod

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I32": 4, "U8": 1}


def safetensors(tensors, metadata=None, dtype="BF16"):
    """The bytes of a safetensors file with these names and shapes, its tensors zero."""
    header = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, shape in tensors.items():
        kind = dtype[name] if isinstance(dtype, dict) else dtype
        size = prod(shape) * SIZES[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return with_header(json.dumps(header).encode(), at)


def with_header(header, data_bytes=0, length=None):
    """The bytes of a safetensors file with this header, and a length that may lie."""
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(data_bytes)


def expand(spec):
    """Names and shapes of a spec's tensors as a checkpoint of unstacked layers holds them."""
    from loadmaster.models.parameters import tensors

    found = {}
    for tower in spec.towers:
        for tensor in tensors(spec):
            if tensor.tower != tower.name:
                continue
            if tensor.layer is None:
                found[tensor.name] = tensor.shape
                continue
            for index, kind in enumerate(tower.layout):
                if tower.blocks[kind].name == tensor.layer:
                    found[tensor.name.replace("{}", str(index), 1)] = tensor.shape
    found.update({tensor.name: tensor.shape for tensor in tensors(spec) if tensor.tower is None})
    return found


def text(value):
    """A GGUF string."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    """A GGUF metadata field of a text, a flag, a whole number or a list of texts."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack("<II", 4, value)


def gguf(metadata, tensors, kind=1, block=(1, 2), version=3):
    """The bytes of a GGUF file: metadata and tensors of one type, shapes as torch writes them."""
    infos, at = b"", 0
    for name, shape in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        infos += struct.pack("<IQ", kind, at)
        at += -(-(prod(shape) // block[0] * block[1]) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items()) + infos
    return head + bytes(-len(head) % 32) + bytes(at)
