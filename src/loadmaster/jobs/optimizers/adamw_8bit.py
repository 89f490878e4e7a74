"""AdamW with 8-bit states (bitsandbytes): two moments of one byte, and a float32 scale for every 256 values of each."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._bitsandbytes import narrow, wide
from loadmaster.jobs.optimizers._step import Trained

NAME = "adamw_8bit"
IMPLEMENTATIONS = ("fused",)
SOURCE = (
    "bitsandbytes/optim/optimizer.py Optimizer2State.init_state: uint8 states and absmax per 256-value block; tensors of "
    "fewer than min_8bit_size = 4096 values keep float32 states; arXiv:2110.02861 §2"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """States of one parameter with their scales."""
    return narrow(tensor, 2)


def states_wide(tensor: Trained) -> tuple[Size, ...]:
    """32-bit states of a tensor that a library exempts from 8 bits."""
    return wide(tensor, 2)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """One fused kernel a tensor: nothing is allocated."""
    return 0
