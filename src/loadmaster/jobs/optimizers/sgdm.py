"""SGD with momentum: one buffer a parameter."""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.dtypes import itemsize

NAME = "sgdm"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
STATES = 1
SOURCE = (
    "torch/optim/sgd.py: momentum_buffer is a clone of the first gradient; later steps update it in place"
)


def state_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of the momentum buffer of one parameter tensor."""
    return elements * itemsize(dtype)


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """Nothing beyond the states is allocated."""
    return 0
