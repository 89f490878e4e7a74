"""Sophia (SophiaG, arXiv:2305.14342): a momentum and a diagonal Hessian a parameter, in the parameter's own format."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, moments

NAME = "sophia"
IMPLEMENTATIONS = ("for-loop",)
SOURCE = (
    "github.com/Liuhong99/Sophia sophia.py: exp_avg and hessian are zeros_like(param); _single_tensor_sophiag holds "
    "|exp_avg|, rho × bs × hess + 1e-15 and their quotient at once"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Momentum and Hessian of one parameter."""
    return moments(tensor, 2)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    names = Names()
    for tensor in tensors:
        names.new("ratio", tensor.size_bytes, 2 * tensor.size_bytes)
    return names.peak
