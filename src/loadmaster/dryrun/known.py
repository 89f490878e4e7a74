"""Values that the host has of tensors of the device: kept, shared by views, forgotten when something unknown is written."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

LARGEST_KNOWN = 65_536
"""Elements of tensors whose values are kept."""


class Known:
    """The host's copy of a tensor; ``live`` is shared by all views of one storage and turns False with an unknown write."""

    __slots__ = ("live", "tensor")

    def __init__(self, tensor: torch.Tensor, live: list[bool] | None = None) -> None:
        self.tensor, self.live = tensor, live if live is not None else [True]


def known(tensor: Any) -> torch.Tensor | None:
    """The values of a tensor of the device, where they are known."""
    found = tensor.__dict__.get("_known")
    return found.tensor if found is not None and found.live[0] else None


def expected(tensor: Any) -> float | None:
    """What elements of a tensor are on average, where that can be said."""
    found: float | None = tensor.__dict__.get("_expected")
    if found is None and (values := known(tensor)) is not None and values.numel() and not values.is_complex():
        with no_dispatch():
            found = values.double().mean().item()
    return found


def whole(tensor: Any) -> bool:
    """Whether a tensor is all of its storage, so that writing it leaves nothing unknown."""
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def remember(tensor: Any, values: torch.Tensor, base: Any) -> None:
    """Keep a tensor's values; ``base`` is the tensor that it is a view of."""
    live = base.__dict__["_known"].live if base is not None and "_known" in base.__dict__ else None
    tensor._known = Known(values, live)


def forget(args: Any, kwargs: Any, schema: Any) -> None:
    """Something unknown is written: nothing that shares the storage is known any more."""
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = (
            kwargs.get(argument.name)
            if argument.name in kwargs
            else args[place]
            if place < len(args)
            else None
        )
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, FakeTensor):
                found = tensor.__dict__.get("_known")
                if found is not None:
                    found.live[0] = False
                tensor.__dict__.pop("_expected", None)
