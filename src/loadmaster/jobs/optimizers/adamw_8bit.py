"""AdamW with 8-bit states (bitsandbytes): two moments of one byte, and a float32 scale for every 256 values of each."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, where

NAME = "adamw_8bit"
IMPLEMENTATIONS = ("fused",)
STATES = 2
SOURCE = (
    "bitsandbytes/optim/optimizer.py Optimizer2State.init_state: uint8 states and absmax per 256-value block; tensors of "
    "fewer than min_8bit_size = 4096 values keep float32 states; arXiv:2110.02861 §2"
)


def state_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of both moments of one parameter tensor with their scales."""
    return where(elements < 4096, 8 * elements, 2 * (elements + 4 * ceil_div(elements, 256)))


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """One fused kernel a tensor: nothing is allocated."""
    return 0
