"""AdamW with fp8 states (torchao): two moments of one byte, and a float32 scale for every 256 values of each."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, ceil_div, where
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Trained

NAME = "adamw_fp8"
IMPLEMENTATIONS = ("fused",)
SOURCE = (
    "torchao optim/subclass_fp8.py: float8_e4m3fn codes, block_size 256 with a float32 scale each; tensors of fewer than "
    "4096 values keep plain states (optim/adam.py)"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments of one parameter with their scales."""
    small = tensor.elements < 4096
    codes = where(small, 4 * tensor.elements, tensor.elements)
    scales = where(small, 0 * tensor.elements, 4 * ceil_div(tensor.elements, 256))
    return (codes, codes, scales, scales)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """One compiled kernel a tensor: nothing is allocated."""
    return 0
