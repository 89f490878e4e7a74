"""Muon (torch.optim.Muon) for the matrices of hidden layers, foreach AdamW for tables, head and vectors, as its documentation
asks: one momentum a matrix, orthogonalised by Newton-Schulz steps in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, maximum, minimum, rounded
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, moments

NAME = "muon"
IMPLEMENTATIONS = ("for-loop",)
SOURCE = (
    "torch/optim/_muon.py: momentum_buffer is zeros_like(grad); grad.lerp makes the update, _zeropower_via_newtonschulz two "
    "bfloat16 matrices of its shape and up to three squares of its smaller side"
)


def by_muon(tensor: Trained) -> bool:
    """Whether Muon takes this tensor: torch.optim.Muon refuses all but matrices."""
    return tensor.hidden and len(tensor.sides) == 2


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """The momentum of a hidden matrix, both of AdamW's moments of anything else."""
    return moments(tensor, 1 if by_muon(tensor) else 2)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of the two steps, which follow one another."""
    names = Names()
    for tensor in tensors:
        if not by_muon(tensor):
            continue
        matrix = rounded(2 * tensor.elements)
        side = minimum(*tensor.sides)
        square = rounded(2 * side * side)
        names.new("update", tensor.size_bytes)
        names.scratch(matrix, 3 * square)
        names.scratch(2 * matrix, 2 * square)
        names.held["update"] = matrix
    return maximum(names.peak, copies(t for t in tensors if not by_muon(t)))
