"""What an operator returned for arguments of these shapes, to be made again at once: most of a step is repetition.

FakeTensorMode has such a cache too; its key asks far more of every tensor than decides anything here (static shapes, strided
tensors of one mode, no values), and costs most of a dry run's time. What isn't plain goes the long way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

LONG_WAY = frozenset(
    {torch.Tag.inplace_view, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
)
"""Operators that change what a tensor is, or whose outputs depend on data."""
NAMESPACES = frozenset({"aten", "prims"})
_plain: dict[Any, bool] = {}
_subclass: Any = torch.Tensor._make_subclass


class New(NamedTuple):
    """An output in a storage of its own."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class View(NamedTuple):
    """An output in the storage of the tensor at this place among the arguments' tensors."""

    place: int
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class Same(NamedTuple):
    """The tensor at this place itself."""

    place: int


class Constant(NamedTuple):
    """No tensor."""

    value: Any


Output = New | View | Same | Constant
Recipe = list[Output] | Output


class Recipes:
    """Recipes of one mode, by operator and arguments."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.known: dict[Any, Recipe | None] = {}
        self._fields: dict[torch.device, dict[str, Any]] = {}

    def key(self, func: Any, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        """What decides the outputs, with the arguments' tensors appended to ``tensors``; None: take the long way."""
        plain = _plain.get(func)
        if plain is None:
            plain = _plain[func] = _is_plain(func)
        if not plain:
            return None
        parts: list[Any] = [func, torch.get_default_dtype()]
        for each in args:
            if not self._add(each, parts, tensors):
                return None
        for name, each in kwargs.items():
            parts.append(name)
            if not self._add(each, parts, tensors):
                return None
        return tuple(parts)

    def _add(self, each: Any, parts: list[Any], tensors: list[Any]) -> bool:
        kind = type(each)
        if isinstance(each, FakeTensor):
            if (
                each.fake_mode is not self.mode
                or each.layout is not torch.strided
                or each.is_conj()
                or each.is_neg()
            ):
                return False
            tensors.append(each)
            parts.append((each.dtype, each.shape, each.stride(), each.storage_offset(), each.fake_device))
            return True
        if kind is list or kind is tuple or kind is torch.Size:
            parts.append(len(each))
            return all(self._add(one, parts, tensors) for one in each)
        if kind in _SCALARS:
            parts.append(kind)
            parts.append(each)
            return True
        return False

    def make(self, recipe: Recipe, tensors: list[Any]) -> Any:
        """The outputs once more."""
        if isinstance(recipe, list):
            return tuple([self._one(output, tensors) for output in recipe])
        return self._one(recipe, tensors)

    def _one(self, output: Output, tensors: list[Any]) -> Any:
        if isinstance(output, New):
            meta = torch.empty_strided(output.shape, output.strides, dtype=output.dtype, device="meta")
            return self._fake(meta, output.device)
        if isinstance(output, View):
            meta = torch.empty(0, dtype=output.dtype, device="meta")
            storage = tensors[output.place].untyped_storage()
            meta.set_(storage, output.offset, output.shape, output.strides)
            return self._fake(meta, output.device)
        if isinstance(output, Same):
            return tensors[output.place]
        return output.value

    def _fake(self, meta: torch.Tensor, device: torch.device) -> Any:
        """FakeTensor's constructor without its checks: the fields of one that it made, on another tensor."""
        fields = self._fields.get(device)
        if fields is None:
            first = FakeTensor(self.mode, meta, device)
            self._fields[device] = dict(first.__dict__)
            return first
        fake = _subclass(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
        torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(fields)
        return fake

    def learn(self, key: Any, tensors: list[Any], out: Any) -> None:
        """Keep what an operator returned."""
        self.known[key] = self._recipe(tensors, out)

    def _recipe(self, tensors: list[Any], out: Any) -> Recipe | None:
        if isinstance(out, tuple | list):
            found = [output for one in out if (output := self._output(tensors, one)) is not None]
            return found if type(out) is tuple and len(found) == len(out) else None
        return self._output(tensors, out)

    def _output(self, tensors: list[Any], one: Any) -> Output | None:
        if type(one) in _SCALARS:
            return Constant(one)
        if (
            not isinstance(one, FakeTensor)
            or one.layout is not torch.strided
            or one.is_conj()
            or one.is_neg()
        ):
            return None
        if one.constant is not None or one.requires_grad:
            return None
        for place, tensor in enumerate(tensors):
            if one is tensor:
                return Same(place)
        storage = one.untyped_storage()
        for place, tensor in enumerate(tensors):
            if tensor.untyped_storage()._cdata == storage._cdata:
                return View(
                    place, one.shape, one.stride(), int(one.storage_offset()), one.dtype, one.fake_device
                )
        if one.storage_offset() != 0:
            return None
        again = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
        if again.untyped_storage().nbytes() != storage.nbytes():
            return None
        return New(one.shape, one.stride(), one.dtype, one.fake_device)


_SCALARS = {
    int,
    float,
    bool,
    type(None),
    str,
    complex,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}


def _is_plain(func: Any) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace not in NAMESPACES:
        return False
    return not LONG_WAY.intersection(func.tags) and not func._schema.name.endswith(
        ("set_", "resize_", "detach_")
    )
