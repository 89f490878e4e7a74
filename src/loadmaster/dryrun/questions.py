"""Operators that ask for data: known, else as expected, else by a stated policy, which is noted."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun.known import LARGEST_KNOWN, expected, forget, known, remember

aten = torch.ops.aten


def item(values: Any, tensor: Any) -> Any:
    """The value of a tensor of one element."""
    kept = known(tensor)
    if kept is not None:
        with no_dispatch():
            return kept.item()
    mean = expected(tensor)
    if mean is not None:
        return (
            bool(mean >= 0.5)
            if tensor.dtype == torch.bool
            else mean
            if tensor.dtype.is_floating_point
            else round(mean)
        )
    return values.state("value of a tensor", tensor.dtype)


def nonzero(values: Any, tensor: Any) -> Any:
    """Indices of what isn't zero: known; else as many as expected; else all."""
    kept = known(tensor)
    if kept is not None:
        with no_dispatch():
            found = kept.nonzero()
        out = torch.empty(tuple(found.shape), dtype=torch.long, device=tensor.device)
        remember(out, found, None)
        return out
    mean = expected(tensor)
    total = tensor.numel()
    count = total if mean is None else min(total, max(0, round(total * min(mean, 1.0))))
    if mean is None or mean < 1:
        values.note(
            "which elements aren't zero", "all" if mean is None else f"{mean:.4g} of them, spread evenly"
        )
    out = torch.empty((count, tensor.dim()), dtype=torch.long, device=tensor.device)
    if count == total and tensor.dim() == 1 and total <= LARGEST_KNOWN:
        with no_dispatch():
            remember(out, torch.arange(total).unsqueeze(1), None)
    return out


def equal(values: Any, one: Any, other: Any) -> Any:
    """Whether two tensors are the same."""
    if one.shape != other.shape:
        return False
    left, right = (known(t) if isinstance(t, FakeTensor) else t for t in (one, other))
    if left is not None and right is not None:
        with no_dispatch():
            return torch.equal(left, right)
    values.note("whether two tensors are equal", "True")
    return True


def index(values: Any, tensor: Any, indices: Any, *rest: Any) -> Any:
    """Boolean masks become indices first, as the kernel does it."""
    if not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented
    found: list[Any] = []
    for index in indices:
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            found.extend(index.nonzero().unbind(1))
        else:
            found.append(index)
    return aten.index.Tensor(tensor, found)


def index_put(values: Any, tensor: Any, indices: Any, written: Any, accumulate: bool = False) -> Any:
    """Writing by a mask: nothing that lives depends on where."""
    if not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return NotImplemented
    # A mask of unknown density may not have as many places as there are values: nothing that lives depends on it.
    forget((tensor,), {}, aten.index_put_.default._schema)
    return tensor


def masked_select(values: Any, tensor: Any, mask: Any) -> Any:
    """As indexing by the mask."""
    tensor, mask = torch.broadcast_tensors(tensor, mask)
    return aten.index.Tensor(tensor, list(mask.nonzero().unbind(1)))


def repeat_interleave(values: Any, repeats: Any, output_size: int | None = None) -> Any:
    """Indices, each as often as said."""
    kept = known(repeats)
    if kept is not None:
        with no_dispatch():
            found = torch.repeat_interleave(kept)
        out = torch.empty(tuple(found.shape), dtype=torch.long, device=repeats.device)
        remember(out, found, None)
        return out
    if output_size is None:
        mean = expected(repeats)
        output_size = repeats.numel() if mean is None else round(repeats.numel() * mean)
        values.note("how often to repeat", f"{output_size} in all")
    return torch.empty((output_size,), dtype=torch.long, device=repeats.device)


def _of_known(operator: Any) -> Any:
    """An operator whose results' sizes follow from values, run where these are known."""

    def answer(_: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        values = known(tensor) if isinstance(tensor, FakeTensor) else None
        if values is None:
            return NotImplemented
        with no_dispatch():
            found = operator(values, *args, **kwargs)
        made = []
        for one in found if isinstance(found, tuple) else (found,):
            out = torch.empty(tuple(one.shape), dtype=one.dtype, device=tensor.device)
            remember(out, one, None)
            made.append(out)
        return tuple(made) if isinstance(found, tuple) else made[0]

    return answer


QUESTIONS: dict[Any, Any] = {
    aten._local_scalar_dense.default: item,
    aten.nonzero.default: nonzero,
    aten.equal.default: equal,
    aten.index.Tensor: index,
    aten.index_put_.default: index_put,
    aten.masked_select.default: masked_select,
    aten.repeat_interleave.Tensor: repeat_interleave,
    **{
        operator: _of_known(operator)
        for operator in (
            aten.unique_consecutive.default,
            aten._unique2.default,
            aten.unique_dim.default,
            aten.bincount.default,
        )
    },
}
