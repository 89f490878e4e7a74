"""AdamW with 4-bit states (torchao, lpmm): two moments of half a byte, and a float32 scale for every 128 values of each."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, ceil_div, where
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Trained

NAME = "adamw_4bit"
IMPLEMENTATIONS = ("fused",)
SOURCE = (
    "torchao optim/subclass_4bit.py: codes are uint8 pairs, block_size 128 with a float32 scale each; tensors of fewer "
    "than 4096 values keep plain states (optim/adam.py); arXiv:2309.01507"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments of one parameter with their scales."""
    small = tensor.elements < 4096
    codes = where(small, 4 * tensor.elements, ceil_div(tensor.elements, 2))
    scales = where(small, 0 * tensor.elements, 4 * ceil_div(tensor.elements, 128))
    return (codes, codes, scales, scales)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """One compiled kernel a tensor: nothing is allocated."""
    return 0
