"""SGD with momentum: one buffer a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Trained, moments

NAME = "sgdm"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
SOURCE = (
    "torch/optim/sgd.py: momentum_buffer is a clone of the first gradient; later steps update it in place"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """The momentum buffer of one parameter."""
    return moments(tensor, 1)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Nothing beyond the states is allocated."""
    return 0
