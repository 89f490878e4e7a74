"""AdamW (and Adam, which has the same states): two moments a parameter, in the parameter's own format."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, counter, moments

NAME = "adamw"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
SOURCE = (
    "torch/optim/adamw.py: exp_avg and exp_avg_sq are zeros_like(param); foreach keeps _foreach_sqrt(exp_avg_sqs), "
    "one copy of a moment over all parameters, and the for-loop sqrt and its quotient of one parameter"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments of one parameter; fused: and the step counter."""
    return (*moments(tensor, 2), *counter(how.implementation))


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "fused":
        return 0
    if how.implementation == "foreach":
        return copies(tensors)
    names = Names()
    for tensor in tensors:
        names.new("denom", tensor.size_bytes, tensor.size_bytes)
    return names.peak
