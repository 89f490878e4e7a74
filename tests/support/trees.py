"""Lays out files under a temporary root: fake ``/proc`` and ``/sys`` trees."""

from __future__ import annotations

from pathlib import Path

GIB = 1024**3
V2_MOUNT = "30 23 0:26 {inside} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1_MOUNT = "35 31 0:32 {inside} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
SHM_MOUNT = "40 1 0:40 / /dev/shm rw - tmpfs shm rw,size=65536k"
MEMINFO = """MemTotal: {total} kB
MemFree: {free} kB
MemAvailable: {available} kB
SwapTotal: {swap} kB
SwapFree: 0 kB
"""


def lay(root: Path, files: dict[str, object]) -> Path:
    """Write every ``path: content`` below ``root``; returns root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def meminfo(total_gib: float, available_gib: float = 1, swap_gib: float = 0) -> str:
    """``/proc/meminfo`` of a machine with this much RAM."""
    kb = [int(size * 1024**2) for size in (total_gib, available_gib / 2, available_gib, swap_gib)]
    return MEMINFO.format(total=kb[0], free=kb[1], available=kb[2], swap=kb[3])
