"""NAdam: AdamW's two moments, and the product of its momenta, a scalar on the device."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, moments

NAME = "nadam"
IMPLEMENTATIONS = ("foreach", "for-loop")
SOURCE = (
    "torch/optim/nadam.py: exp_avg, exp_avg_sq and mu_product (a float32 scalar); foreach keeps _foreach_sqrt(exp_avg_sqs), "
    "the for-loop exp_avg_sq.div(...) and its root"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments and mu_product of one parameter."""
    return (*moments(tensor, 2), 4)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "foreach":
        return copies(tensors)
    names = Names()
    for tensor in tensors:
        names.new("denom", tensor.size_bytes, tensor.size_bytes)
    return names.peak
