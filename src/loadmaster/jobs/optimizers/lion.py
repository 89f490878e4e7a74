"""Lion (arXiv:2302.06675): one momentum a parameter. Fused is bitsandbytes' (transformers' ``lion_32bit``), with a float32
state whatever the parameter's format; the for-loop is lion-pytorch's, in the parameter's own."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, maximum
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._bitsandbytes import wide
from loadmaster.jobs.optimizers._step import Trained, moments

NAME = "lion"
IMPLEMENTATIONS = ("fused", "for-loop")
SOURCE = (
    "bitsandbytes/optim/optimizer.py Optimizer1State.init_state: state1 in float32; lion_pytorch update_fn: "
    "exp_avg.clone().mul_(beta1).add(grad) of one parameter, two tensors"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """The momentum of one parameter."""
    return wide(tensor, 1) if how.implementation == "fused" else moments(tensor, 1)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    largest: Size = 0
    for tensor in tensors:
        largest = maximum(largest, tensor.size_bytes)
    return 0 if how.implementation == "fused" else 2 * largest
