"""The memory limit of the control group this process is in, version 1, 2 or both, walked to the top.

A limit of any level binds, and no file of version 2 tells the effective one, so each visible level is read and the one
with the least left wins (JDK-8322420). Usage counts page cache; the part of it that can be given back at once
(``inactive_file``) is taken off, as the working set of Kubernetes does. The kernel's documents: Documentation/
admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A limit above a private namespace is invisible from inside.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from loadmaster.records import Record
from loadmaster.sensors import files

_UNLIMITED_V1 = 1 << 62
"""Version 1 prints 2**63 rounded down to a page where there is no limit."""


class Cgroup(Record, kw_only=True):
    """The tightest visible level. ``limit_bytes`` None: no level has a limit below the machine's RAM."""

    version: Literal["v1", "v2", "hybrid"]
    path: str
    limit_bytes: int | None = None
    used_bytes: int | None = None
    high_bytes: int | None = None
    swap_limit_bytes: int | None = None


class _Level(NamedTuple):
    path: str
    limit: int | None
    used: int | None
    high: int | None
    swap: int | None

    @property
    def left(self) -> int:
        return (self.limit or 0) - (self.used or 0)


class _Mount(NamedTuple):
    version: int
    inside: str
    point: str


def read(root: Path, ram_total_bytes: int | None) -> Cgroup | None:
    """The control group of this process, or None where there are none (or nothing of them can be read)."""
    paths = _paths(files.text(root / "proc/self/cgroup") or "")
    mounts = _mounts(files.text(root / "proc/self/mountinfo") or "")
    levels: list[_Level] = []
    for mount in mounts:
        if mount.version in paths:
            levels += _walk(root, mount, paths[mount.version], ram_total_bytes)
    if not levels:
        return None
    limited = [level for level in levels if level.limit is not None]
    tightest = min(limited, key=lambda level: level.left) if limited else levels[0]
    highs = [level.high for level in levels if level.high is not None]
    swaps = [level.swap for level in levels if level.swap is not None]
    both = 1 in paths and 2 in paths
    return Cgroup(
        version="hybrid" if both else "v1" if 1 in paths else "v2",
        path=tightest.path,
        limit_bytes=tightest.limit,
        used_bytes=tightest.used,
        high_bytes=min(highs, default=None),
        swap_limit_bytes=min(swaps, default=None),
    )


def _paths(text: str) -> dict[int, str]:
    """The path of this process in each hierarchy that can limit memory, from ``/proc/self/cgroup``."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers and path:
            found[2] = path
        elif "memory" in controllers.split(","):
            found[1] = path
    return found


def _mounts(text: str) -> list[_Mount]:
    """Where the hierarchies are mounted, from ``/proc/self/mountinfo``: version 1's memory and version 2."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if not separator or len(words) < 5 or len(kind) < 3:
            continue
        version = (
            2 if kind[0] == "cgroup2" else 1 if kind[0] == "cgroup" and "memory" in kind[2].split(",") else 0
        )
        if version:
            found.append(_Mount(version, _unescape(words[3]), _unescape(words[4])))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _walk(root: Path, mount: _Mount, path: str, ram_total_bytes: int | None) -> list[_Level]:
    """The levels from the process's own up to the top of the mount that exist here, innermost first."""
    top = root / mount.point.lstrip("/")
    inside = mount.inside.rstrip("/")
    if inside and (path == inside or path.startswith(inside + "/")):
        path = path[len(inside) :]
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # a namespace whose root is below this process
        parts = []
    levels = []
    for depth in range(len(parts), -1, -1):
        directory = top.joinpath(*parts[:depth])
        name = "/" + "/".join(parts[:depth])
        level = _level_v2(directory, name) if mount.version == 2 else _level_v1(directory, name)
        if level is not None:
            levels.append(_without_slack(level, ram_total_bytes))
    return levels


def _level_v2(directory: Path, name: str) -> _Level | None:
    used = files.number(directory / "memory.current")
    limit_text = files.text(directory / "memory.max")
    if used is None and limit_text is None:
        return None
    reclaimable = files.fields(directory / "memory.stat").get("inactive_file", 0)
    return _Level(
        name,
        files.number(directory / "memory.max"),
        None if used is None else max(0, used - reclaimable),
        files.number(directory / "memory.high"),
        files.number(directory / "memory.swap.max"),
    )


def _level_v1(directory: Path, name: str) -> _Level | None:
    limit = files.number(directory / "memory.limit_in_bytes")
    used = files.number(directory / "memory.usage_in_bytes")
    if limit is None and used is None:
        return None
    stat = files.fields(directory / "memory.stat")
    limits = [found for found in (limit, stat.get("hierarchical_memory_limit")) if found is not None]
    limit = min(limits, default=None)
    both = files.number(directory / "memory.memsw.limit_in_bytes")
    swap = both - limit if both is not None and limit is not None and both < _UNLIMITED_V1 else None
    reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return _Level(name, limit, None if used is None else max(0, used - reclaimable), None, swap)


def _without_slack(level: _Level, ram_total_bytes: int | None) -> _Level:
    """A limit at or above the machine's RAM (or version 1's largest number) limits nothing."""
    most = min(_UNLIMITED_V1, ram_total_bytes or _UNLIMITED_V1)
    limit = level.limit if level.limit is not None and level.limit < most else None
    high = level.high if level.high is not None and level.high < most else None
    return level._replace(limit=limit, high=high)
