"""AdEMAMix (arXiv:2409.03137) of bitsandbytes: a fast and a slow momentum and the second moment, in float32."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._bitsandbytes import wide
from loadmaster.jobs.optimizers._step import Trained

NAME = "ademamix"
IMPLEMENTATIONS = ("fused",)
SOURCE = (
    "bitsandbytes/optim/ademamix.py init_state: state1 holds both momenta, twice the parameter's values, state2 the "
    "second moment"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """States of one parameter."""
    return wide(tensor, 3)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """One fused kernel a tensor: nothing is allocated."""
    return 0
