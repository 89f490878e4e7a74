"""SGD without momentum: no state."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Trained

NAME = "sgd"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
SOURCE = "torch/optim/sgd.py: without momentum and weight decay, param.add_(grad, alpha=-lr) in place"


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Nothing is kept."""
    return ()


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Nothing beyond the states is allocated."""
    return 0
