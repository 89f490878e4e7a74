"""AdamW with fp8 states (torchao): two moments of one byte, and a float32 scale for every 256 values of each."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, where

NAME = "adamw_fp8"
IMPLEMENTATIONS = ("fused",)
STATES = 2
SOURCE = "torchao optim/subclass_fp8.py: float8_e4m3fn codes, block_size 256 with a float32 scale each"


def state_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of both moments of one parameter tensor with their scales."""
    return where(elements < 4096, 8 * elements, 2 * (elements + 4 * ceil_div(elements, 256)))


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """One compiled kernel a tensor: nothing is allocated."""
    return 0
