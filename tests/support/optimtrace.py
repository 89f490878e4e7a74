"""States and step temporaries of real optimizers, storage by storage, on small real tensors.

Sizes are rounded to 512 bytes as CUDA's allocator does. Scalars (step counters and norms, 512 bytes each at most) are left
out of the temporaries: on CUDA most of them live on the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Measured(NamedTuple):
    """Bytes of each parameter's state tensors, largest first, and the highest temporary of a step."""

    states: list[list[int]]
    temporary: int


class RealTracer(TorchDispatchMode):
    """Live and peak bytes of tensors made while it is on."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: dict[int, int] = {tensor.untyped_storage()._cdata: -1 for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if not isinstance(tensor, torch.Tensor) or tensor.numel() <= 1:
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = rounded(storage.nbytes())
                self.live += self.sizes[storage._cdata]
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._gone, storage._cdata)
        return out

    def _gone(self, key: int) -> None:
        self.live -= self.sizes.pop(key)


def measure(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
) -> Measured:
    """Eight steps of an optimizer; the temporaries of the last, when all states exist (and RAdam rectifies)."""
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    optimizer = make(params)
    for _ in range(7):
        _gradients(params)
        optimizer.step()
    _gradients(params)
    held = [v for p in params for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    tracer = RealTracer([*params, *(p.grad for p in params if p.grad is not None), *held])
    with tracer:
        optimizer.step()
    states = [
        sorted(
            (
                v.untyped_storage().nbytes()
                for k, v in optimizer.state[p].items()
                if _on_device(k, v, optimizer)
            ),
            reverse=True,
        )
        for p in params
    ]
    return Measured(states, tracer.peak)


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def _on_device(key: str, value: Any, optimizer: torch.optim.Optimizer) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return key != "step" or bool(optimizer.param_groups[0].get("fused"))


def _gradients(params: Sequence[torch.nn.Parameter]) -> None:
    for param in params:
        param.grad = torch.randn_like(param)
