"""Adagrad: one sum of squared gradients a parameter, kept from the start."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, counter, moments

NAME = "adagrad"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
SOURCE = (
    "torch/optim/adagrad.py: state_sum is full_like(param); foreach holds _foreach_sqrt(state_sums) and the gradients times "
    "the rate, two copies over all parameters, and the for-loop the root of one"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """The sum of one parameter; fused: and the step counter."""
    return (*moments(tensor, 1), *counter(how.implementation))


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "fused":
        return 0
    if how.implementation == "foreach":
        return 2 * copies(tensors)
    names = Names()
    for tensor in tensors:
        names.new("std", tensor.size_bytes)
    return names.peak
