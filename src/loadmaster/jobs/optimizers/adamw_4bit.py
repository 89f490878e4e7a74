"""AdamW with 4-bit states (torchao, lpmm): two moments of half a byte, and a float32 scale for every 128 values of each."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, where

NAME = "adamw_4bit"
IMPLEMENTATIONS = ("fused",)
STATES = 2
SOURCE = (
    "torchao optim/subclass_4bit.py: codes are uint8 pairs, block_size 128 with a float32 scale each; tensors of fewer "
    "than 4096 values keep plain states (optim/adam.py); arXiv:2309.01507"
)


def state_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of both moments of one parameter tensor with their scales."""
    return where(elements < 4096, 8 * elements, 2 * (ceil_div(elements, 2) + 4 * ceil_div(elements, 128)))


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """One compiled kernel a tensor: nothing is allocated."""
    return 0
