"""SGD without momentum: no state."""

from __future__ import annotations

from loadmaster.arrays import Size

NAME = "sgd"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
STATES = 0
SOURCE = "torch/optim/sgd.py: without momentum and weight decay, param.add_(grad, alpha=-lr) in place"


def state_bytes(elements: Size, dtype: str) -> Size:
    """Nothing is kept."""
    return 0


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """Nothing is allocated."""
    return 0
