"""GaLore's AdamW (arXiv:2403.03507): the gradient of a hidden matrix is projected to ``rank`` dimensions of its shorter side,
both moments live there; every 200 steps the projector is computed anew by a singular value decomposition."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, minimum, rounded, where
from loadmaster.dtypes import itemsize
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import HALVES, Names, Trained, moments

NAME = "galore_adamw"
IMPLEMENTATIONS = ("for-loop",)
RANK = 128
"""transformers Trainer: optim_args rank, 128 unless said."""
SOURCE = (
    "galore_torch/galore_projector.py and adamw.py: ortho_matrix, a slice of the decomposition, copied only when the "
    "gradient isn't float32 (else it keeps the whole factor); moments like the projected gradient (arXiv:2403.03507 "
    "table 1: mn + mr + 2nr); torch.linalg.svd in float32 with its working copy; project_back and its product with scale"
)


def projected(tensor: Trained) -> bool:
    """Whether GaLore projects this tensor: matrices of hidden layers (optim_target_modules: attention and MLP)."""
    return tensor.hidden and len(tensor.sides) == 2


def low_rank(tensor: Trained, how: Optimizer) -> tuple[Size, Size, Size, Size]:
    """Values of the projected gradient, of the projector, of the factor it is cut from, and the smaller side."""
    rows, columns = tensor.sides
    short, long = minimum(rows, columns), where(rows >= columns, rows, columns)
    rank = minimum(how.rank or RANK, short)
    return long * rank, short * rank, short * short, short


def states(tensor: Trained, how: Optimizer) -> tuple[Size, ...]:
    """Both moments and, of a projected matrix, its projector."""
    if not projected(tensor):
        return moments(tensor, 2)
    low, projector, factor, _ = low_rank(tensor, how)
    size = itemsize(tensor.dtype)
    return (size * low, size * low, size * projector if tensor.dtype in HALVES else size * factor)


def step_bytes(tensors: Sequence[Trained], how: Optimizer) -> Size:
    """Highest temporary of a step that computes projectors, as the first does."""
    names = Names()
    for tensor in tensors:
        names.free("grad")
        low = tensor.size_bytes
        if projected(tensor):
            values, _, factor, short = low_rank(tensor, how)
            whole, low = rounded(4 * tensor.elements), rounded(itemsize(tensor.dtype) * values)
            cast = whole if tensor.dtype in HALVES else 0
            names.scratch(cast, whole, whole, rounded(4 * factor), rounded(4 * short))
            names.new("grad", low)
        names.new("denom", low)
        names.new("norm_grad", low)
        if projected(tensor):
            names.new("norm_grad", tensor.size_bytes, tensor.size_bytes)
    return names.peak
