"""What torch can't do with fake parameters and a dry run needs: moving modules, ``.data``, storages that change size, printing.

``Patches`` puts attributes into torch's own classes and takes them out again at the end.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from loadmaster.dryrun.tracker import Tracker

_ABSENT = object()


class Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute; returns what was there."""
        before = (
            owner.__dict__.get(name, _ABSENT) if hasattr(owner, "__dict__") else getattr(owner, name, _ABSENT)
        )
        self._before.append((owner, name, before))
        setattr(owner, name, value)
        return getattr(owner, name) if before is _ABSENT else before

    def later(self, call: Callable[[], None]) -> None:
        """Call this when everything is put back, before what is set by now."""
        self._before.append((None, "", call))

    def undo(self) -> None:
        """Put everything back, last first."""
        while self._before:
            owner, name, before = self._before.pop()
            if owner is None:
                before()
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def install(patches: Patches, tracker: Tracker) -> None:
    """Patch torch for the time of a session."""
    moved = _Moved()
    patches.later(moved.back)
    patches.set(torch.nn.Module, "_apply", _applier(moved, tracker))
    patches.set(torch.UntypedStorage, "resize_", _resizer(torch.UntypedStorage.resize_, tracker))
    patches.set(torch.Tensor, "__format__", _formatted(torch.Tensor.__format__))
    patches.set(FakeTensor, "data", property(_data, _set_data))
    patches.set(FakeTensor, "__deepcopy__", _deepcopy)
    patches.set(FakeTensor, "numpy", _no_numpy(torch.Tensor.numpy))
    patches.set(FakeTensor, "data_ptr", _no_pointer)
    supported = _foreach_types()
    if FakeTensor not in supported:
        # Otherwise optimizers take the for-loop, which needs less memory than the foreach kernels that CUDA runs.
        supported.append(FakeTensor)
        patches.later(lambda: supported.remove(FakeTensor))


def _foreach_types() -> list[Any]:
    import importlib

    found: list[Any] = importlib.import_module("torch.optim.optimizer")._foreach_supported_types
    return found


class _Moved:
    """Modules with real tensors, made before the session, that its program has moved: they get these back at the end."""

    def __init__(self) -> None:
        self._parameters: list[tuple[weakref.ref[Any], str, Any, Any]] = []
        """Module and name, held weakly as the program may drop it; the parameter's id; who holds its data meanwhile."""
        self._buffers: list[tuple[weakref.ref[Any], str, Any]] = []

    def parameter(self, module: Any, name: str, param: Any, applied: Any) -> None:
        """A real parameter becomes a fake one on the device, and stays the object that optimizers know."""
        other = torch.nn.Parameter(applied.detach(), requires_grad=param.requires_grad)
        other.__dict__.update(param.__dict__)
        _exchange(param, other)
        self._parameters.append((weakref.ref(module), name, id(param), other))

    def buffer(self, module: Any, name: str, buffer: Any) -> None:
        """A real buffer is replaced in its module."""
        if not isinstance(buffer, FakeTensor):
            self._buffers.append((weakref.ref(module), name, buffer))

    def back(self) -> None:
        """Everything real is where it was."""
        for owner, name, number, other in reversed(self._parameters):
            module = owner()
            param = None if module is None else module._parameters.get(name)
            if param is not None and id(param) == number:
                _exchange(param, other)
        for owner, name, buffer in reversed(self._buffers):
            module = owner()
            if module is not None and isinstance(module._buffers.get(name), FakeTensor):
                module._buffers[name] = buffer


def _exchange(one: Any, other: Any) -> None:
    """As torch.utils.swap_tensors, where a graph may still hold one of them."""
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def _applier(moved: _Moved, tracker: Tracker) -> Callable[..., Any]:
    def _apply(module: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """nn.Module._apply that changes parameters in place (as CPU to CUDA does: ``param.data = fn(param.data)``), so that
        ties and optimizers made before keep them."""
        if recurse:
            for child in module.children():
                child._apply(fn, recurse=True)
        for name, param in module._parameters.items():
            if param is None:
                continue
            before = param.grad
            with torch.no_grad():
                applied = fn(param)
            if applied is not param:
                _become(moved, module, name, param, applied)
                tracker.tag(param, "parameters")
            if before is not None:
                with torch.no_grad():
                    grad = fn(before)
                if grad is not param.grad:
                    param.grad = grad
        for name, buffer in module._buffers.items():
            if buffer is not None:
                applied = module._buffers[name] = fn(buffer)
                if applied is not buffer:
                    moved.buffer(module, name, buffer)
                    tracker.tag(applied, "buffers")
        return module

    return _apply


def _become(moved: _Moved, module: Any, name: str, param: Any, applied: Any) -> None:
    if is_traceable_wrapper_subclass(param) or is_traceable_wrapper_subclass(applied):
        # A DTensor: as nn.Module._apply does it, the object keeps its identity and gets the other's local tensor.
        torch.utils.swap_tensors(param, torch.nn.Parameter(applied, requires_grad=param.requires_grad))
    elif isinstance(param, FakeTensor) and isinstance(applied, FakeTensor):
        swap(param, applied.detach())
    elif isinstance(param, FakeTensor) == isinstance(applied, FakeTensor):
        param.data = applied
    else:
        moved.parameter(module, name, param, applied)


def swap(tensor: Any, other: Any) -> None:
    """``tensor`` becomes what ``other`` is (storage, sizes, type, device) and keeps its identity, gradient and flags."""
    grad, requires, leaf = tensor.grad, tensor.requires_grad, tensor.is_leaf
    if grad is not None:
        tensor.grad = None
    with torch.no_grad():
        torch._C._swap_tensor_impl(tensor, other)
    tensor.fake_device, other.fake_device = other.fake_device, tensor.fake_device
    for name in ("_known", "_expected"):
        value = other.__dict__.pop(name, None)
        tensor.__dict__.pop(name, None)
        if value is not None:
            setattr(tensor, name, value)
    if requires and leaf and not tensor.requires_grad:
        tensor.requires_grad_(True)
    if grad is not None and grad.device == tensor.device and grad.shape == tensor.shape:
        tensor.grad = grad


def _data(tensor: Any) -> Any:
    return torch.Tensor.data.__get__(tensor)  # type: ignore[attr-defined]


def _set_data(tensor: Any, value: Any) -> None:
    if isinstance(value, FakeTensor):
        with torch.no_grad():
            swap(tensor, value.detach())
    else:
        torch.Tensor.data.__set__(tensor, value)  # type: ignore[attr-defined]


def _deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        fresh = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    else:
        fresh.requires_grad_(tensor.requires_grad)
    fresh.__dict__.update(
        {k: copy.deepcopy(v, memo) for k, v in tensor.__dict__.items() if k not in _OWN_FIELDS}
    )
    memo[id(tensor)] = fresh
    return fresh


_OWN_FIELDS = {
    "_known", "_expected", "fake_mode", "fake_device", "constant", "pytype", "dispatch_keys", "_nonzero_memo", "_item_memo",
    "_unique_memo", "_unique_consecutive_memo", "nested_int_memo", "real_tensor", "_debug_trace", "_is_param",
}  # fmt: skip


def _resizer(real: Any, tracker: Tracker) -> Any:
    def resize_(storage: Any, size: int) -> Any:
        before = storage.nbytes()
        found = real(storage, size)
        tracker.resized(storage, before)
        return found

    return resize_


def _formatted(real: Any) -> Any:
    def format_(tensor: Any, spec: str) -> str:
        if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
            return format(tensor.item(), spec)
        return str(real(tensor, spec))

    return format_


def _no_numpy(real: Any) -> Any:
    def numpy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cuda":
            raise TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                "memory first."
            )
        from loadmaster.dryrun.values import Values

        with no_dispatch():
            return Values().real(tensor, "numpy").numpy(*args, **kwargs)

    return numpy


def _no_pointer(tensor: Any) -> int:
    if "/accelerate/" in sys._getframe(1).f_code.co_filename:
        # It only wants to know which tensor is which, when it gives an optimizer the sharded parameters.
        return int(tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size())
    raise RuntimeError(
        "this program calls a compiled kernel (Triton, flash-attn, a C++ extension) that has no fake version: a dry run has "
        "no data to point to"
    )
