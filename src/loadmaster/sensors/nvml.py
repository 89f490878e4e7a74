"""NVIDIA cards through NVML, the library behind nvidia-smi; it opens no CUDA context, which would take memory itself.

Every question may go unanswered: older drivers lack functions, containers lack permissions, MIG parents and integrated
chips say Not Supported. A question that fails gives None; only a driver that can't be asked at all gives a reason.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.hardware import Absent, Device, Host, Link, Partition, find_detected
from loadmaster.records import replace
from loadmaster.sensors import files

_REASONS = {
    4: "the NVIDIA driver may not be asked by this user (no permission)",
    9: "the NVIDIA driver is not loaded",
    12: "NVIDIA's driver library (libnvidia-ml) is not installed here",
    15: "the GPU has fallen off the bus; the driver lost it",
    18: "the NVIDIA driver and its library have different versions; a reboot after the update cures it",
}
"""By NVML's return codes (nvml.h, nvmlReturn_t)."""

_SENTINEL = 1 << 60
"""Totals from here on are the all-ones values that WSL and old drivers give for 'unknown'."""


class Found(NamedTuple):
    """The cards, or why there are none, and the versions of driver and CUDA."""

    devices: tuple[Device, ...]
    absent: tuple[Absent, ...]
    driver: str | None = None
    cuda: str | None = None


def read(host: Host, root: Path = Path("/"), module: Any = None) -> Found:
    """The NVIDIA cards of this machine; ``module`` stands in for ``pynvml`` in tests. Never raises."""
    library: Any = module
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except Exception:  # not only missing: a broken installation may fail in any way
            return _absent("the Python package nvidia-ml-py is not installed, or broken")
    try:
        library.nvmlInit()
    except Exception as error:  # so may a broken driver
        return _absent(_reason(error, root))
    try:
        return _read_all(host, library)
    finally:
        _ask(library, "nvmlShutdown")


def _read_all(host: Host, module: Any) -> Found:
    driver = _string(_ask(module, "nvmlSystemGetDriverVersion"))
    version = _ask(module, "nvmlSystemGetCudaDriverVersion")
    cuda = f"{version // 1000}.{version % 1000 // 10}" if isinstance(version, int) and version > 0 else None
    count = _ask(module, "nvmlDeviceGetCount")
    if not count:
        return Found(
            (), (Absent(vendor="NVIDIA", reason="the driver runs and sees no NVIDIA GPU"),), driver, cuda
        )
    devices: list[Device] = []
    absent: list[Absent] = []
    for index in range(count):
        handle = _ask(module, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            absent.append(
                Absent(vendor="NVIDIA", reason=f"GPU {index} can't be opened: lost or no permission")
            )
            continue
        mode = _ask(module, "nvmlDeviceGetMigMode", handle)
        if mode and mode[0] == 1:
            slices = _mig(host, module, handle, index, driver)
            devices += slices
            if not slices:
                absent.append(
                    Absent(vendor="NVIDIA", reason=f"GPU {index} is in MIG mode and has no instances")
                )
        else:
            device = _device(host, module, handle, index, driver)
            if device.gpu.memory_marketed_bytes:
                devices.append(device)
            else:
                reason = (
                    f"GPU {index} ({device.device_name}) tells no memory size and is not in the catalogue"
                )
                absent.append(Absent(vendor="NVIDIA", reason=reason))
    return Found(tuple(devices), tuple(absent), driver, cuda)


def _device(host: Host, module: Any, handle: Any, index: int, driver: str | None) -> Device:
    name = _string(_ask(module, "nvmlDeviceGetName", handle)) or "NVIDIA GPU"
    total, reserved, used = _memory(module, handle)
    found = find_detected(name, total)
    if total is None and (shared := find_detected(name, host.ram_total_bytes)).gpu.shares_system_memory:
        found = shared  # an integrated chip: its memory is the system's, and tells it from others of its name
    if found.gpu.shares_system_memory:
        total = reserved = used = None
    ecc = _ask(module, "nvmlDeviceGetEccMode", handle)
    return replace(
        found,
        index=index,
        uuid=_string(_ask(module, "nvmlDeviceGetUUID", handle)),
        device_name=name,
        nvml_total_bytes=total,
        nvml_reserved_bytes=reserved,
        # On Windows and under WSL CUDA's total equals NVML's (data/gpu_memory_observations.csv).
        cuda_total_bytes=total if host.platform in ("wsl", "win32") else None,
        held_bytes=used,
        ecc=bool(ecc[0]) if ecc else None,
        driver=driver,
        link=_link(module, handle),
    )


def _mig(host: Host, module: Any, handle: Any, index: int, driver: str | None) -> list[Device]:
    parent = _string(_ask(module, "nvmlDeviceGetName", handle)) or "NVIDIA GPU"
    slices = []
    for number in range(_ask(module, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = _ask(module, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if part is None:
            continue
        device = _device(host, module, part, index, driver)
        if device.partition is None:
            device = _unlisted_slice(device, parent)
        slices.append(replace(device, link=_link(module, handle)))
    return slices


def _unlisted_slice(device: Device, parent: str) -> Device:
    """A slice that ``data/mig.csv`` doesn't list: the driver's own total is its memory."""
    profile = re.search(r"\d+g\.\d+gb", device.device_name or "")
    total = device.nvml_total_bytes or 0
    part = Partition(
        kind="mig",
        profile=profile.group() if profile else "unknown",
        memory_bytes=total,
        memory_low_bytes=total,
        memory_high_bytes=total,
        source="NVML total of this instance",
    )
    return replace(device, gpu=find_detected(parent, None).gpu, partition=part, assumed=())


def _memory(module: Any, handle: Any) -> tuple[int | None, int | None, int | None]:
    """Total, reserved and used bytes. Version 2 tells the reserve apart; version 1 counts it as used."""
    info = _ask(module, "nvmlDeviceGetMemoryInfo", handle, getattr(module, "nvmlMemory_v2", None))
    reserved = _size(getattr(info, "reserved", None))
    if info is None:
        info = _ask(module, "nvmlDeviceGetMemoryInfo", handle)
    total = _size(getattr(info, "total", None))
    if not total:
        return None, None, None
    return total, reserved, _size(getattr(info, "used", None))


def _link(module: Any, handle: Any) -> Link | None:
    link = Link(
        generation=_ask(module, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
        lanes=_ask(module, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        max_generation=_ask(module, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_lanes=_ask(module, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )
    return link if link != Link() else None


def _ask(module: Any, name: str, *arguments: Any) -> Any:
    """The answer to one question, or None when there is no such function or it fails."""
    try:
        return getattr(module, name)(*arguments)
    except Exception:  # see the module's docstring: an unanswered question is an answer
        return None


def _string(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value if isinstance(value, str) and value else None


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < _SENTINEL else None


def _absent(reason: str) -> Found:
    return Found((), (Absent(vendor="NVIDIA", reason=reason),))


def _reason(error: Exception, root: Path) -> str:
    code = getattr(error, "value", None)
    loaded = files.text(root / "proc/driver/nvidia/version")
    if code == 12 and loaded:
        return "the NVIDIA driver is loaded, its library (libnvidia-ml) isn't here; pass the GPUs to the container"
    if isinstance(code, int) and code in _REASONS:
        return _REASONS[code]
    return f"the NVIDIA driver can't be asked: {str(error) or type(error).__name__}"
