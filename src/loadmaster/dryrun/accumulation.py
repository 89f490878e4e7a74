"""Gradients that meet: autograd's engine adds to a plain tensor in place where it may, and makes a new tensor of fake ones.

input_buffer.cpp accumulate (can_accumulate_inplace): a tensor that is dense and held by nobody but the engine's buffer takes the
other's values; subclasses of Tensor, which fake tensors are, never do. What torch counts as holders differs between its
versions and with the calls in between, so it is learned from a sum that is known to be in place.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch._dynamo.eval_frame
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
ADD = aten.add.Tensor
INTO_ZEROS = frozenset(
    {
        aten.index_put.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.index_add.default,
    }
)
"""What backward formulas write into zeros they have just made: in place, or of subclasses' zeros into a copy
(FunctionsManual.cpp: index_backward, gather_backward, value_selecting_reduction_backward with areAnyTensorSubclassLike)."""
_held_once: list[tuple[int, int]] = []
"""Holders of a tensor, and of its storage, that only the engine's buffer holds."""


def in_place(args: Any, kwargs: Any, between: frozenset[str]) -> bool:
    """Whether an addition is one of the engine's own and would be in place: no Python runs between the engine's start and this
    operator but that of the files ``between``."""
    if kwargs or len(args) != 2:
        return False
    one, other = args
    if not isinstance(one, FakeTensor) or not isinstance(other, FakeTensor) or one.shape != other.shape:
        return False
    if not called_by_engine(between):
        return False
    tensor: Any = one
    held = tensor._use_count(), torch._C._storage_Use_Count(one.untyped_storage()._cdata)
    if not _held_once:
        _held_once.append(held)
    most = _held_once[0]
    dense = torch._prims_common.is_non_overlapping_and_dense_or_false(one)
    return bool(dense and held[0] <= most[0] and held[1] <= most[1])


def called_by_engine(between: frozenset[str]) -> bool:
    """Whether no Python runs between autograd's engine and this operator but that of the files ``between``."""
    frame: Any = sys._getframe(2)
    while frame.f_code.co_filename in between or frame.f_code.co_filename in _TORCH:
        frame = frame.f_back
    return bool(frame.f_code.co_name == "_engine_run_backward")


def calibrate() -> None:
    """Learn the count, on two gradients of ``x`` that only the engine holds; call on a device that records nothing."""
    if not _held_once:
        x = torch.empty(8, device="cuda", requires_grad=True)
        (x * 2 + x * 3).backward(torch.empty(8, device="cuda"))


_TORCH = {__file__, torch._compile.__file__, torch._dynamo.eval_frame.__file__, fake_tensor.__file__}
