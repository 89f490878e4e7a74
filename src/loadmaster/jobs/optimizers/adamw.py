"""AdamW (and Adam, which has the same states): two moments a parameter, in the parameter's own format."""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.dtypes import itemsize

NAME = "adamw"
IMPLEMENTATIONS = ("foreach", "fused", "for-loop")
STATES = 2
SOURCE = (
    "torch/optim/adamw.py: exp_avg and exp_avg_sq are zeros_like(param); foreach keeps _foreach_sqrt(exp_avg_sqs), "
    "one copy of a moment over all parameters, and the for-loop sqrt and its quotient of one parameter"
)


def state_bytes(elements: Size, dtype: str) -> Size:
    """Bytes of both moments of one parameter tensor (the step counter is a float32 on the host)."""
    return 2 * elements * itemsize(dtype)


def step_bytes(implementation: str, total: Size, largest: Size) -> Size:
    """Highest temporary of a step; ``total`` and ``largest`` are bytes of one moment."""
    return {"foreach": total, "for-loop": 2 * largest, "fused": 0}[implementation]
