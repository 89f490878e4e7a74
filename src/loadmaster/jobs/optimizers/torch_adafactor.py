"""Adafactor as torch.optim has it: a row and a column moment for a matrix, a full one for a vector, in the parameter's own
format (arXiv:1804.04235 §4)."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, rounded
from loadmaster.dtypes import itemsize
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, moments

NAME = "torch_adafactor"
IMPLEMENTATIONS = ("for-loop", "foreach")
SOURCE = (
    "torch/optim/_adafactor.py: row_var and col_var (or variance); the for-loop, its default also on CUDA, makes one "
    "row_var @ col_var while the update before is still named, foreach all of them at once"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Factors of one matrix, or the variance of one vector."""
    if tensor.factors is None:
        return moments(tensor, 1)
    size = itemsize(tensor.dtype)
    return tuple(size * factor for factor in tensor.factors)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "foreach":
        return copies(tensors)
    names = Names()
    for tensor in tensors:
        if tensor.factors is None:
            names.new("grad_squared", tensor.size_bytes)
        else:
            size = itemsize(tensor.dtype)
            for name, factor in zip(("row_mean", "col_mean"), tensor.factors, strict=True):
                names.new(name, rounded(size * factor))
        names.scratch(tensor.size_bytes)
        names.held["update"] = tensor.size_bytes
    return names.peak
