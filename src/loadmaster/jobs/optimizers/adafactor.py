"""Adafactor as transformers has it (``optim="adafactor"``): a row and a column moment for a matrix, a full one for a vector,
all in float32 (arXiv:1804.04235 §4); without its optional first moment."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, rounded
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import HALVES, Names, Trained

NAME = "adafactor"
IMPLEMENTATIONS = ("for-loop",)
SOURCE = (
    "transformers/optimization.py Adafactor.step: exp_avg_sq_row and exp_avg_sq_col (or exp_avg_sq) in float32 and a scalar "
    "RMS; of a 16-bit parameter it makes float32 copies of gradient and weight; grad**2 and its sum with eps, then the "
    "update and its negative, while the update of the parameter before is still named"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Factors of one matrix, or the moment of one vector, and its RMS."""
    if tensor.factors is None:
        return (4 * tensor.elements, 4)
    rows, columns = tensor.factors
    return (4 * rows, 4 * columns, 4)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    names = Names()
    for tensor in tensors:
        size = rounded(4 * tensor.elements)
        for name in ("grad", "p_data_fp32"):
            names.free(name)
            if tensor.dtype in HALVES:
                names.new(name, size)
        names.new("update", size, size)
        if tensor.factors is None:
            names.new("update", size)
        else:
            rows, columns = tensor.factors
            names.new("update", size, rounded(4 * rows), rounded(4 * columns))
        names.scratch(size)
    return names.peak
