"""Operators that torch's C++ calls on the device below Python's modes: lists that become tensors, indexing with them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from loadmaster.dryrun import dynamic, questions
from loadmaster.dryrun.known import LARGEST_KNOWN, Known


class Below:
    """Kernels for CUDA where a CPU build has none, until ``_destroy``. ``session`` makes and counts the tensors."""

    def __init__(self, session: Any) -> None:
        self.session = session
        session.mode.replaced.update(dynamic.answers(session))
        self._lifts = torch._C._only_lift_cpu_tensors()
        # torch.tensor(data, device="cuda") makes a host tensor first, and moves it where modes see it.
        torch._C._set_only_lift_cpu_tensors(True)
        self._library = torch.library.Library("aten", "IMPL")
        if torch.ops.aten.empty_strided.default.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA):
            return  # a build with CUDA
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("empty_strided", "empty.memory_format", "copy_", "_local_scalar_dense"):
                self._library.impl(name, getattr(self, name.partition(".")[0].strip("_")), "CUDA")

    def _destroy(self) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifts)
        self._library._destroy()

    def empty_strided(self, size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Any:
        """A tensor of the device."""
        return self.session.device_tensor(torch.empty_strided(size, stride, dtype=dtype, device="meta"))

    def empty(self, size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> Any:
        """A tensor of the device."""
        return self.session.device_tensor(
            torch.empty(
                size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format
            )
        )

    def copy(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        """Small host tensors are known afterwards."""
        if not isinstance(source, FakeTensor) and source.numel() <= LARGEST_KNOWN:
            target._known = Known(source.detach().to(target.dtype).expand(target.shape).clone())
        return target

    def local_scalar_dense(self, tensor: Any) -> Any:
        """The value of a tensor."""
        return questions.item(self.session.values, tensor)
