"""``cuda`` as a device that fake tensors may live on, in a build of torch that has no CUDA.

Two tables of libtorch say no. c10's slot for CUDA's device guard is empty, so that nothing can name the device; and the hooks
that autograd asks for the process's accelerator say that none was built. Both are exported data: torch itself puts a guard
that does nothing into the first (``c10::impl::ensureCUDADeviceGuardSet``, written for FakeTensorMode) when a guard is
there that counts no device, and two answers of the second (``at::CUDAHooksInterface``) are replaced in a copy of its method
table. Symbols are named as on Linux (Itanium ABI); elsewhere the dry run says that it can't.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError

CUDA = 1
"""c10::DeviceType::CUDA."""
METHODS = 48
"""Entries of the hooks' method table that are copied: all that it has in torch 2.13."""
FIRST_METHODS = range(2, 8)
"""Where isBuilt and hasPrimaryContext are looked for: right after the two destructors."""

_kept: list[Any] = []
"""What libtorch points to from now on."""
_hooks: list[tuple[Any, int, int]] = []
"""Where the hooks' method table is named, with the table that was there and ours."""


class UnknownTorchError(LoadmasterError):
    """This build of torch has other tables than are known here."""

    def __init__(self, what: str) -> None:
        import torch

        super().__init__(
            f"a dry run can't simulate CUDA on torch {torch.__version__}: {what}",
            hint="it works with the CPU and CUDA builds of torch 2.6 to 2.13 on Linux",
        )


def install() -> None:
    """Let fake tensors live on ``cuda``; does nothing where they already can. Raises UnknownTorchError."""
    import torch

    if _hooks:
        pointer, _, ours = _hooks[0]
        pointer.value = ours
        return
    if torch.cuda.is_available():
        return
    folder = Path(torch.__file__).parent / "lib"
    try:
        c10 = ctypes.CDLL(str(folder / "libc10.so"))
        cpu = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
        _guard(c10)
        _accelerator(cpu)
    except (OSError, AttributeError, ValueError) as error:
        raise UnknownTorchError(str(error)) from None


def uninstall() -> None:
    """Autograd's question has its old answer again; the guard, which does nothing, stays."""
    for pointer, before, _ in _hooks:
        pointer.value = before


def _guard(c10: ctypes.CDLL) -> None:
    registry = (ctypes.c_void_p * (CUDA + 1)).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    if registry[CUDA]:
        return
    zero = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 0)
    methods = (ctypes.c_void_p * METHODS)(*[_address(zero)] * METHODS)
    stand_in = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    registry[CUDA] = ctypes.addressof(stand_in)
    c10._ZN3c104impl24ensureCUDADeviceGuardSetEv()  # takes its place: it counts no device
    if registry[CUDA] == ctypes.addressof(stand_in):
        registry[CUDA] = None
        raise UnknownTorchError("the device guard can't be set")


def _accelerator(cpu: ctypes.CDLL) -> None:
    """Autograd's question for the accelerator is answered with cuda: ``isBuilt`` yes, ``hasPrimaryContext`` no."""
    import torch

    if torch._C._get_accelerator().type == "cuda":
        return
    get = cpu._ZN2at6detail12getCUDAHooksEv
    get.restype = ctypes.c_void_p
    pointer = ctypes.c_void_p.from_address(get())
    before = pointer.value or 0
    yes, no = (ctypes.CFUNCTYPE(ctypes.c_bool)(answer) for answer in (lambda: True, lambda: False))
    _kept.extend([yes, no])
    for built in FIRST_METHODS:
        table = _with(before, {built: yes})
        pointer.value = ctypes.addressof(table) + HEADER
        if torch._C._accelerator_getAccelerator().type == "cuda":
            # hasPrimaryContext follows isBuilt and isAvailable (AcceleratorHooksInterface.h since 2.6).
            table = _with(before, {built: yes, built + 2: no})
            pointer.value = ctypes.addressof(table) + HEADER
            _hooks.append((pointer, before, pointer.value))
            return
        pointer.value = before
    raise UnknownTorchError("no method table answers for the accelerator")


HEADER = 2 * ctypes.sizeof(ctypes.c_void_p)
"""Offset to top and type information, which lie before the first method."""


def _with(before: int, changed: dict[int, Any]) -> Any:
    """A copy of a method table with some methods replaced; kept alive."""
    table = (ctypes.c_void_p * (METHODS + 2))()
    ctypes.memmove(table, before - HEADER, HEADER + METHODS * ctypes.sizeof(ctypes.c_void_p))
    for index, method in changed.items():
        table[index + 2] = _address(method)
    _kept.append(table)
    return table


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
