"""The memory around the accelerators: RAM, swap, control group, ``/dev/shm``, locked memory, cores, container."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadmaster.hardware import Host
from loadmaster.sensors import cgroups, files

_CONTAINER_FILES = ((".dockerenv", "docker"), ("run/.containerenv", "podman"))
_CONTAINER_PATHS = ("kubepods", "docker", "containerd", "libpod", "lxc", "garden")


def read(root: Path = Path("/")) -> Host:
    """The host as this process sees it; what can't be read is None."""
    memory = _memory(root)
    group = cgroups.read(root, memory.get("MemTotal"))
    shm_total, shm_free = _shm(root)
    memlock, unlimited = _memlock(root)
    return Host(
        ram_total_bytes=memory.get("MemTotal"),
        ram_available_bytes=memory.get("MemAvailable"),
        ram_free_bytes=memory.get("MemFree"),
        swap_total_bytes=memory.get("SwapTotal"),
        swap_free_bytes=memory.get("SwapFree"),
        cgroup_version=group.version if group else None,
        cgroup_path=group.path if group else None,
        cgroup_limit_bytes=group.limit_bytes if group else None,
        cgroup_high_bytes=group.high_bytes if group else None,
        cgroup_used_bytes=group.used_bytes if group else None,
        cgroup_swap_limit_bytes=group.swap_limit_bytes if group else None,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        memlock_bytes=memlock,
        memlock_unlimited=unlimited,
        cores=_cores(),
        container=_container(root),
        platform=platform(root),
    )


def platform(root: Path = Path("/")) -> str:
    """``linux``, ``wsl``, ``darwin`` or ``win32``; under WSL a CUDA total equals NVML's."""
    kernel = (files.text(root / "proc/version") or "").lower()
    return "wsl" if "microsoft" in kernel else "linux" if kernel else sys.platform


def _memory(root: Path) -> dict[str, int]:
    """Sizes by the names of ``/proc/meminfo``; elsewhere psutil gives the same."""
    found = files.fields(root / "proc/meminfo")
    if found or root != Path("/"):
        return found
    import psutil

    ram, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "MemTotal": int(ram.total),
        "MemAvailable": int(ram.available),
        "MemFree": int(ram.free),
        "SwapTotal": int(swap.total),
        "SwapFree": int(swap.free),
    }


def _shm(root: Path) -> tuple[int | None, int | None]:
    """Size and free bytes of ``/dev/shm``, only where it is a mount of its own."""
    mounted = any(
        line.split()[4:5] == ["/dev/shm"]  # noqa: S108
        for line in (files.text(root / "proc/self/mountinfo") or "").splitlines()
    )
    if not mounted:
        return None, None
    try:
        state = os.statvfs(root / "dev/shm")
    except OSError:
        return None, None
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def _memlock(root: Path) -> tuple[int | None, bool]:
    """The soft limit of locked (pinned) memory from ``/proc/self/limits``, and whether there is none."""
    for line in (files.text(root / "proc/self/limits") or "").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[:1]
            if soft == ["unlimited"]:
                return None, True
            return (int(soft[0]), False) if soft and soft[0].isdigit() else (None, False)
    return None, False


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _container(root: Path) -> str | None:
    for name, kind in _CONTAINER_FILES:
        if (root / name).exists():
            return kind
    told = files.text(root / "run/systemd/container")
    if told:
        return told
    group = files.text(root / "proc/1/cgroup") or files.text(root / "proc/self/cgroup") or ""
    for word in _CONTAINER_PATHS:
        if word in group:
            return "kubernetes" if word == "kubepods" else word
    for line in (files.text(root / "proc/self/mountinfo") or "").splitlines():
        words = line.split()
        if words[4:5] == ["/"] and " - overlay " in line:
            return "container"
    return None
