"""Paged AdamW (bitsandbytes, transformers' ``paged_adamw_32bit``): two float32 moments in memory that moves to the host when
the card is full."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._bitsandbytes import paged as _paged
from loadmaster.jobs.optimizers._bitsandbytes import unpaged, wide
from loadmaster.jobs.optimizers._step import Trained

NAME = "paged_adamw"
IMPLEMENTATIONS = ("fused",)
SOURCE = (
    "bitsandbytes/optim/optimizer.py get_state_buffer: tensors of 100,000 values and more get cudaMallocManaged memory, which "
    "the driver moves between device and host (arXiv:2305.14314 §3); PyTorch counts none of it"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """What PyTorch's allocator holds: the states of small tensors."""
    return unpaged(tensor, wide(tensor, 2))


def paged(tensor: Trained, how: Optimizer) -> Size:
    """What the driver pages: the states of large tensors."""
    return _paged(tensor, wide(tensor, 2))


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """One fused kernel a tensor: nothing is allocated."""
    return 0
