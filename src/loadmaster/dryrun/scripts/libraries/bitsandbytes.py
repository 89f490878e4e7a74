"""bitsandbytes: its own wrappers around its CUDA kernels run, so that what they allocate is counted; the kernels don't.

Its operators have fake kernels, but those make only the results. The functions that it registers for CUDA (backends/cuda/ops.py)
allocate scales, masks and unpacked weights with torch, and call the compiled library with pointers: here the library's
functions do nothing and pointers are 0. Paged tensors (optimizer states) are managed memory, which isn't the allocator's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from loadmaster.dryrun.scripts.adjustments import Adjustments
from loadmaster.dryrun.tensors import Patches

_kernels: dict[str, dict[str, Callable[..., Any]]] = {}
"""By operator and device, the functions that the library has registered in this process."""
BACKEND = "bitsandbytes.backends.cuda.ops"


class _Library:
    """The compiled library: every function is there and does nothing."""

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0


def _extension(module: Any, adjustments: Adjustments) -> None:
    """Before other modules import the compiled library from here."""
    adjustments.patches.set(module, "lib", _Library())


def _operators(module: Any, adjustments: Adjustments) -> None:
    real = module.register_kernel

    def register_kernel(name: str, device: Any, *args: Any, **kwargs: Any) -> Any:
        register = real(name, device, *args, **kwargs)

        def note(function: Any) -> Any:
            _kernels.setdefault(name, {})[str(device)] = function
            return register(function)

        return note

    adjustments.patches.set(module, "register_kernel", register_kernel)


def _functional(module: Any, adjustments: Adjustments) -> None:
    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        out = torch.zeros(prod(shape), dtype=dtype).view(shape)
        out.is_paged, out.page_deviceid = True, 0  # type: ignore[attr-defined]
        return out

    adjustments.patches.set(module, "lib", _Library())
    adjustments.patches.set(module, "get_paged", get_paged)
    adjustments.patches.set(module, "get_ptr", lambda tensor: None)
    adjustments.replace(module, "prefetch_tensor", lambda _: lambda *_, **__: None)


def _backend(module: Any, adjustments: Adjustments) -> None:
    adjustments.patches.set(module, "lib", _Library())
    for each in vars(module).values():
        if callable(getattr(each, "cache_clear", None)):
            each.cache_clear()  # answers about another card
    replaced = adjustments.session.mode.replaced
    for name, by_device in _kernels.items():
        function = by_device.get("cuda", by_device.get("default"))
        if function is not None:
            replaced[_overload(name)] = _pointing_nowhere(function)


def _overload(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _pointing_nowhere(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        patches = Patches()
        patches.set(FakeTensor, "data_ptr", lambda _: 0)
        try:
            return function(*args, **kwargs)
        finally:
            patches.undo()

    return run


def _modules(module: Any, adjustments: Adjustments) -> None:
    """Scales and tables of a packed weight belong to the parameters."""
    tracker = adjustments.session.tracker

    def tagging(real: Any) -> Callable[..., Any]:
        def quantize(param: Any, *args: Any, **kwargs: Any) -> Any:
            packed = real(param, *args, **kwargs)
            state = packed.quant_state
            while state is not None:
                for tensor in (state.absmax, state.code, state.offset):
                    tracker.tag(tensor, "parameters")
                state = state.state2
            return packed

        return quantize

    adjustments.replace(module.Params4bit, "_quantize", tagging)


def _library(module: Any, adjustments: Adjustments) -> None:
    """Imported before there was a GPU, the library has left out its functions for CUDA."""
    if BACKEND not in sys.modules:
        import importlib

        importlib.import_module(BACKEND)


PATCHES = {
    "bitsandbytes.cextension": _extension,
    "bitsandbytes._ops": _operators,
    "bitsandbytes.functional": _functional,
    "bitsandbytes.nn.modules": _modules,
    BACKEND: _backend,
    "bitsandbytes": _library,
}
