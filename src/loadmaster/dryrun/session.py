"""The simulated device as a context: inside, ``cuda`` is there, and every block it takes is recorded."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun import accumulation, attention, cuda_api, guard, hooks, kernels, tensors
from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.below import Below
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.layouts import groups
from loadmaster.dryrun.mode import CUDA, CudaMode
from loadmaster.dryrun.tracker import Tracker
from loadmaster.dryrun.values import Values

_active: list[Session] = []


class Session:
    """One simulated device. ``with Session(card) as session:`` puts it up and takes it down again; one at a time."""

    def __init__(
        self,
        card: Card | None = None,
        *,
        conf: str = "",
        on_step: Callable[[int], None] | None = None,
        attention_kernel: str | None = None,
    ) -> None:
        self.card = card or Card()
        capacity = self.card.usable_bytes if self.card.limited else None
        self.conf_text = conf
        self.allocator = Allocator(parse_alloc_conf(conf), capacity, self.card.total_bytes)
        self.tracker = Tracker(self.allocator, self.card)
        self.values = Values()
        self.mode = CudaMode(self.tracker, self.values)
        self.watch = hooks.Watch(self.tracker, on_step)
        self.choose = attention.Chooser(self.card.capability, attention_kernel)
        self.notes = self.watch.notes
        self._patches = tensors.Patches()
        self._libraries: list[Any] = []
        self._threads: Any = None

    def __enter__(self) -> Session:
        if _active:
            raise RuntimeError("a dry run is under way in this process already")
        guard.install()
        _active.append(self)
        try:
            cuda_api.install(self._patches, self.card, self.tracker)
            tensors.install(self._patches, self.tracker)
            self._kernels()
            # What torch logs with a traceback becomes an error of ours, in a sentence.
            log = logging.getLogger("torch._subclasses.fake_tensor")
            self._patches.set(log, "disabled", True)
            # Backward runs in this thread: autograd's device threads are counted at a process's first backward, which may have
            # been before there was a device.
            self._threads = torch.autograd.set_multithreading_enabled(False)
            with CudaMode(Tracker(Allocator(), self.card), Values()):
                accumulation.calibrate()
            self.watch.install(self._patches)
            groups.install(self._patches, self)
            self.mode.__enter__()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.mode.__exit__(None, None, None)
        self._down()

    def _down(self) -> None:
        if self._threads is not None:
            self._threads.__exit__(None, None, None)
        self.watch.remove()
        for library in self._libraries:
            library._destroy()
        self._libraries.clear()
        self._patches.undo()
        guard.uninstall()
        _active.clear()

    def _kernels(self) -> None:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("scaled_dot_product_attention", self.choose, "AutogradCUDA")
            for func in kernels.WHOLE:
                # With a kernel for CUDA, autograd doesn't take them apart. Fake tensors never reach it.
                if not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA):
                    library.impl(func._schema.name[6:], _never, "CUDA")
        self._libraries += [library, Below(self)]
        self.mode.replaced[attention.SDPA] = self.choose

    def device_module(self, module: Any, name: str = "") -> Any:
        """A module built on the meta device, in place on the simulated one; ties are kept."""
        memo: dict[int, Any] = {}
        for part in module.modules():
            for key, param in part._parameters.items():
                if param is not None and param.device.type == "meta":
                    if id(param) not in memo:
                        memo[id(param)] = self._parameter(param)
                    part._parameters[key] = memo[id(param)]
            for key, buffer in part._buffers.items():
                if buffer is not None and buffer.device.type == "meta":
                    part._buffers[key] = self.device_tensor(buffer, "buffers")
                elif buffer is not None and not isinstance(buffer, FakeTensor):
                    part._buffers[key] = buffer.to("cuda")
        self.watch.name(module, name)
        return module

    def _parameter(self, param: Any) -> Any:
        fake = torch.nn.Parameter(
            self.device_tensor(param.detach(), "parameters"), requires_grad=param.requires_grad
        )
        for key, value in param.__dict__.items():
            setattr(fake, key, value)
        return fake

    def device_tensor(self, meta: torch.Tensor, category: str | None = None) -> Any:
        """A tensor of the meta device as one of the simulated device, in a storage of its own."""
        with no_dispatch():
            fake = FakeTensor(
                self.mode,
                torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device="meta"),
                CUDA,
            )
        block = self.tracker.see(fake, "weight" if category == "parameters" else "load")
        if block is not None:
            block.category = category
        return fake


def _never(*_: Any, **__: Any) -> None:
    raise AssertionError("a real tensor on the simulated device")


def current() -> Session | None:
    """The session that is up in this process."""
    return _active[0] if _active else None
