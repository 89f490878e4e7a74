"""Allocated bytes of real PyTorch code, counted storage by storage on fake tensors: the outside truth for the ledger.

Runs the library's own modelling code, autograd and optimizer under FakeTensorMode on the CPU device, sees every new
storage in a dispatch mode and its death by a finalizer, and rounds to 512 bytes as CUDA's allocator does.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Tracer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: dict[int, tuple[int, str]] = {}
        self.at_peak: Counter[str] = Counter()
        self.want_peak = True
        self.log: list[tuple[str, int, int]] = []

    def see(self, tensor: Any, name: str) -> None:
        if not isinstance(tensor, FakeTensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        size = -(-storage.nbytes() // 512) * 512
        self.sizes[key] = (size, name)
        self.live += size
        weakref.finalize(storage, self.gone, key)
        if self.live > self.peak:
            self.peak = self.live
            if self.want_peak:
                self.at_peak = Counter()
                for size, label in self.sizes.values():
                    self.at_peak[label] += size

    def gone(self, key: int) -> None:
        size, _ = self.sizes.pop(key)
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            self.see(tensor, str(func))
        return out

    def mark(self) -> None:
        self.peak = self.live
        self.at_peak = Counter(dict(self.census()))

    def census(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for size, label in self.sizes.values():
            found[label] += size
        return found


def fake_model(config: Any, mode: FakeTensorMode, dtype: torch.dtype, cls: Any = None, attn: str = "sdpa") -> Any:
    """A transformers model of ``config`` whose parameters and buffers are fake tensors on the CPU."""
    from transformers import AutoModelForCausalLM

    config._attn_implementation = attn
    with torch.device("meta"):
        model = (cls or AutoModelForCausalLM).from_config(config, dtype=dtype) if cls is None else cls(config).to(dtype)
    return to_fake(model, mode)


def to_fake(model: Any, mode: FakeTensorMode) -> Any:
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, param in list(module._parameters.items()):
            if param is not None:
                if id(param) not in memo:
                    fake = FakeTensor(mode, param.detach().to("meta"), torch.device("cpu"))
                    memo[id(param)] = torch.nn.Parameter(fake, requires_grad=param.requires_grad)
                module._parameters[name] = memo[id(param)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = FakeTensor(mode, buffer.to("meta"), torch.device("cpu"))
    return model
