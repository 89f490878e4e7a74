"""RAdam: AdamW's two moments; its for-loop holds five tensors of a parameter's size at once."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Names, Trained, copies, moments

NAME = "radam"
IMPLEMENTATIONS = ("foreach", "for-loop")
SOURCE = (
    "torch/optim/radam.py: exp_avg and exp_avg_sq; foreach keeps _foreach_sqrt(exp_avg_sqs); from its sixth step on the "
    "for-loop holds bias_corrected_exp_avg, its product with lr, the root of exp_avg_sq, its reciprocal and their product"
)


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments of one parameter."""
    return moments(tensor, 2)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step."""
    if how.implementation == "foreach":
        return copies(tensors)
    names = Names()
    for tensor in tensors:
        names.new("bias_corrected_exp_avg", tensor.size_bytes)
        names.scratch(4 * tensor.size_bytes)
    return names.peak
