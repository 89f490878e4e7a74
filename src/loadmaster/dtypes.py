"""Number formats and the bits one value takes, block scales aside (those belong to the quantisation)."""

from __future__ import annotations

from loadmaster.errors import UnknownNameError

BITS = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3": 8, "float8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "bool": 8,
    "nf4": 4, "fp4": 4, "int4": 4, "mxfp4": 4,
}  # fmt: skip
"""Bits per value: torch.dtype.itemsize × 8; the 4-bit formats pack two values into a byte."""

_ALIASES = {
    "fp64": "float64", "double": "float64", "f64": "float64",
    "fp32": "float32", "float": "float32", "f32": "float32", "tf32": "float32",
    "fp16": "float16", "half": "float16", "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3", "f8_e4m3": "float8_e4m3", "float8_e4m3fn": "float8_e4m3", "f8_e5m2": "float8_e5m2",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8",
}  # fmt: skip


def canonical(name: str) -> str:
    """The torch name of a number format: ``bf16`` and ``torch.bfloat16`` give ``bfloat16``.

    Raises UnknownNameError for a format that nothing here knows.
    """
    key = name.lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in BITS:
        raise UnknownNameError("number format", name, [])
    return key


def itemsize(name: str) -> int:
    """Bytes of one value of a whole-byte format, given by its canonical name."""
    return BITS[name] // 8
