"""RMSprop without momentum: one running mean of squared gradients a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, moments

NAME = "rmsprop"
IMPLEMENTATIONS = ("foreach", "for-loop")
SOURCE = (
    "torch/optim/rmsprop.py: square_avg is zeros_like(param); foreach keeps _foreach_sqrt(square_avgs), the for-loop the "
    "root of one (momentum and centered, off by default, add a state each)"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """The mean of one parameter."""
    return moments(tensor, 1)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "foreach":
        return copies(tensors)
    names = Names()
    for tensor in tensors:
        names.new("avg", tensor.size_bytes)
    return names.peak
