"""What any program may do with torch that a session's own code doesn't: host parameters, pinned memory,
threads, compiling, printing.

Host tensors stay real, but parameters are fake from birth, so that a model built on the host costs no memory and an
optimizer made before ``.to("cuda")`` keeps its parameters. What can't be simulated is refused in a sentence.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.known import known
from loadmaster.dryrun.session import Session, current
from loadmaster.dryrun.tensors import Patches
from loadmaster.dryrun.values import LARGEST_HOST_BYTES

COMPILE_NOTE = "torch.compile is left out: compiled code can need less memory, or with CUDA graphs more, than what is shown"

QUIET = ("torch._subclasses.fake_tensor", "bitsandbytes.cextension")
"""Loggers that tell, with a traceback, what isn't so: an operator that failed in its fake kernel, a missing CUDA library."""


def install(patches: Patches, session: Session) -> None:
    """Patch torch for the time of a free-form program."""
    _parameters(patches, session)
    patches.set(session.mode, "fakes_host", _large_in_a_module)
    _pinning(patches)
    _threads(patches, session)
    _compiling(patches, session)
    _generators(patches)
    _recurrent(patches, session)
    _checks(patches)
    _refusals(patches)
    for name in QUIET:
        patches.set(logging.getLogger(name), "disabled", True)
    patches.set(FakeTensor, "__repr__", _printed(session))
    patches.set(FakeTensor, "__str__", FakeTensor.__repr__)


# -- parameters


def _parameters(patches: Patches, session: Session) -> None:
    real: Any = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True, *args: Any, **kwargs: Any) -> Any:
        if cls is torch.nn.Parameter and _on_host(data):
            data = fake(session, data)
        made = real(cls, data, requires_grad, *args, **kwargs)
        session.tracker.tag(made, "parameters")
        return made

    patches.set(torch.nn.Parameter, "__new__", staticmethod(new))

    made: Any = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if issubclass(cls, torch.nn.Parameter) and not issubclass(cls, UNINITIALIZED) and _on_host(data):
            data = fake(session, data)
        if isinstance(data, FakeTensor):
            return _both(made, cls, data, *args)
        return made(cls, data, *args, **kwargs)

    patches.set(FakeTensor, "data_ptr", _address(FakeTensor.data_ptr))
    patches.set(torch.Tensor, "_make_subclass", staticmethod(make_subclass))


IDENTITY = {"accelerate", "peft", "safetensors", "torch", "transformers", "trl"}
"""Packages written in Python that ask for a tensor's address to see which tensors are the same."""


def _address(real: Any) -> Callable[[Any], int]:
    def data_ptr(tensor: Any) -> int:
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] not in IDENTITY:
            return int(real(tensor))  # refuses
        storage = tensor.untyped_storage()
        address: int = storage._cdata + tensor.storage_offset() * tensor.element_size()
        return address

    return data_ptr


UNINITIALIZED = (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)


@cache
def _also_fake(cls: Any) -> Any:
    return cls if issubclass(cls, FakeTensor) else type(cls.__name__, (cls, FakeTensor), {})


def _both(made: Any, cls: Any, data: Any, requires_grad: bool = False) -> Any:
    """A tensor of a library's own class (bitsandbytes' Params4bit) that is a fake one too; shares the storage."""
    with no_dispatch():
        tensor = made(
            _also_fake(cls),
            data,
            requires_grad,
            dispatch_device=True,
            device_for_backend_keys=data.fake_device,
        )
    for name in FIELDS:
        setattr(tensor, name, getattr(data, name))
    return tensor


FIELDS = (
    "fake_device", "fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor", "nonzero_memo", "item_memo",
    "unique_memo", "unique_consecutive_memo", "nested_int_memo",
)  # fmt: skip
"""What FakeTensor.__new__ gives a tensor."""


def _on_host(data: Any) -> bool:
    return (
        type(data) in (torch.Tensor, torch.nn.Parameter)
        and data.device.type == "cpu"
        and data.layout == torch.strided
    )


def fake(session: Session, data: torch.Tensor) -> Any:
    """A host tensor without its data."""
    with no_dispatch():
        meta = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype, device="meta")
        return FakeTensor(session.mode, meta, torch.device("cpu"))


def _large_in_a_module(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a filled host tensor of over 64 MiB is made where a module is made: a parameter or buffer to be."""
    if func not in FILLED or not args:
        return False
    size = args[0]
    elements = math.prod(size) if isinstance(size, list | tuple) else 0
    if elements * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize <= LARGEST_HOST_BYTES:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and isinstance(
            frame.f_locals.get(code.co_varnames[0]), torch.nn.Module
        ):
            return True
        frame = frame.f_back
    return False


aten = torch.ops.aten
FILLED = {aten.randn.default, aten.rand.default, aten.ones.default, aten.full.default, aten.randn.generator}


# -- host memory and threads


def _pinning(patches: Patches) -> None:
    """Pinned memory is host memory like any other."""
    patches.set(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
    patches.set(torch.Tensor, "is_pinned", lambda tensor, device=None: tensor.device.type == "cpu")


def _threads(patches: Patches, session: Session) -> None:
    """Modes belong to threads: threads of the program get ours."""
    real = threading.Thread.run

    def run(thread: threading.Thread) -> None:
        if current() is not session:
            real(thread)
            return
        TorchDispatchMode.__enter__(session.mode)
        try:
            real(thread)
        finally:
            TorchDispatchMode.__exit__(session.mode, None, None, None)

    patches.set(threading.Thread, "run", run)


# -- compiling


def _compiling(patches: Patches, session: Session) -> None:
    def note(given: Any) -> None:
        # Libraries compile functions of their own when they are imported; that is not the program's choice.
        library = "site-packages" in sys._getframe(2).f_code.co_filename
        if (isinstance(given, torch.nn.Module) or not library) and COMPILE_NOTE not in session.notes:
            session.notes.append(COMPILE_NOTE)

    def compile_(model: Any = None, *_: Any, **__: Any) -> Any:
        note(model)
        return (lambda given: given) if model is None else model

    def compile_module(module: Any, *_: Any, **__: Any) -> None:
        note(module)

    patches.set(torch, "compile", compile_)
    patches.set(torch.nn.Module, "compile", compile_module)


# -- generators of random numbers


class _Generators(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


def _generators(patches: Patches) -> None:
    """``torch.Generator("cuda")`` is one of the host's that names the device: nothing random is drawn."""
    real: Any = torch._C.Generator

    cuda = type("CudaGenerator", (real,), {"device": property(lambda _: torch.device("cuda", 0))})

    class Generator(metaclass=_Generators):
        def __new__(cls, device: Any = "cpu") -> Any:
            return cuda() if torch.device(device).type == "cuda" else real(device)

    patches.set(torch, "Generator", Generator)


# -- what a GPU does in another way, or asks of data


RECURRENT_NOTE = (
    "recurrent layers are counted cell by cell: cuDNN runs them whole, and what it keeps for backward may be more "
    "or less"
)


def _recurrent(patches: Patches, session: Session) -> None:
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)

    def noting(real: Any) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if RECURRENT_NOTE not in session.notes:
                session.notes.append(RECURRENT_NOTE)
            return real(*args, **kwargs)

        return forward

    for layer in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        patches.set(layer, "forward", noting(layer.forward))


def _checks(patches: Patches) -> None:
    """Arguments of distributions are taken as valid; encoders in evaluation run as in training, not on nested tensors; there is
    nothing of CUDA's to profile."""
    patches.set(torch.distributions.Distribution, "_validate_args", False)
    patches.set(torch.backends.mha, "_is_fastpath_enabled", False)
    real: Any = torch.profiler.profile.__init__

    def profile(profiler: Any, *args: Any, **kwargs: Any) -> None:
        real(profiler, *args, **{**kwargs, "activities": [torch.profiler.ProfilerActivity.CPU]})

    patches.set(torch.profiler.profile, "__init__", profile)
    loss: Any = torch.ctc_loss

    def ctc_loss(log_probs: Any, targets: Any, *lengths_and_more: Any) -> Any:
        # LossCTC.cpp takes lengths on the host as numbers, but not where it sees a subclass of tensors.
        return loss(log_probs, targets, *(_numbers(each) for each in lengths_and_more))

    patches.set(torch, "ctc_loss", ctc_loss)


def _numbers(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) and value.device.type == "cpu" else value


# -- refusals


def _refused(sentence: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RefusedError(sentence)

    return refuse


def _refusals(patches: Patches) -> None:
    patches.set(
        torch.nn.DataParallel,
        "__init__",
        _refused("DataParallel isn't simulated: use DistributedDataParallel, or one GPU"),
    )
    patches.set(
        torch.nn.modules.lazy.LazyModuleMixin,
        "__init__",
        _refused("lazy layers aren't simulated: give them the size of their input"),
    )

    class CUDAGraph:
        """torch.cuda.CUDAGraph: may be named in annotations, but not made."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise RefusedError("CUDA graphs are not replayed in a dry run: run the program without them")

    patches.set(torch.cuda, "CUDAGraph", CUDAGraph)
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    real = distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "nccl" in backend:
            raise RefusedError(
                "a process group over NCCL isn't simulated for scripts: run the script's code for one GPU, or give the "
                "model by name with --gpus"
            )
        return real(backend, *args, **kwargs)

    patches.set(distributed, "init_process_group", init_process_group)


# -- printing


def _printed(session: Session) -> Callable[..., str]:
    def represent(tensor: Any, **_: Any) -> str:
        values, device = known(tensor), tensor.fake_device
        where = "" if device.type == "cpu" else f", device='{device}'"
        if values is None and tensor.dim() == 0 and device.type == "cuda":
            with no_dispatch():
                values = session.values.real(tensor, "value of a tensor")
        if values is not None:
            with no_dispatch():
                text = repr(values.detach())
            return f"{text[:-1]}{where})"
        kind = "" if tensor.dtype == torch.get_default_dtype() else f", dtype={tensor.dtype}"
        return f"tensor(...{where}, size={tuple(tensor.shape)}{kind})"

    return represent
