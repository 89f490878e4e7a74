"""Apple chips, told by the platform: the GPU's memory is the system's, and Metal lets a job have part of it."""

from __future__ import annotations

import ctypes
import platform
import sys

from loadmaster.hardware import Device, Host, find_detected
from loadmaster.records import replace
from loadmaster.units import MIB


def read(host: Host) -> tuple[Device, ...]:
    """The GPU of an Apple chip; empty anywhere else. Never raises."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return ()
    name = _sysctl_text("machdep.cpu.brand_string") or "Apple chip"
    limit_mib = _sysctl_int("iogpu.wired_limit_mb")
    return (
        replace(
            find_detected(name, None),
            index=0,
            device_name=name,
            system_memory_bytes=host.ram_total_bytes,
            # 0 is the default: Metal's own share. A limit set by the user is what Metal then allows.
            cuda_total_bytes=limit_mib * MIB if limit_mib else None,
        ),
    )


def _sysctl_text(name: str) -> str | None:
    raw = _sysctl(name)
    return raw.rstrip(b"\0").decode("utf-8", "replace") or None if raw else None


def _sysctl_int(name: str) -> int | None:
    raw = _sysctl(name)
    return int.from_bytes(raw, sys.byteorder) if raw and len(raw) in (4, 8) else None


def _sysctl(name: str) -> bytes | None:
    try:
        call = ctypes.CDLL(None).sysctlbyname
        size = ctypes.c_size_t(256)
        buffer = ctypes.create_string_buffer(size.value)
        failed = call(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (AttributeError, OSError):
        return None
    return None if failed else buffer.raw[: size.value]
