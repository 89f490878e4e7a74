"""Modules at the peak as a tree in which layers that are alike are one: ``model.layers.* ×32``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loadmaster.dryrun.result import Share
from loadmaster.render.dryrun_words import OUTSIDE

ROWS = 14
DEPTH = 3
SMALL = 0.01
"""Below this share of the peak a branch is counted, not named."""


class Row(NamedTuple):
    """A branch: how deep, its name, how many modules it stands for, its bytes. Rows of depth 0 sum to the whole."""

    depth: int
    name: str
    modules: int
    size_bytes: int


class _Node:
    def __init__(self) -> None:
        self.size_bytes = 0
        self.paths: set[str] = set()
        """The real paths that this stands for."""
        self.children: dict[str, _Node] = {}


def rows(modules: Iterable[Share]) -> list[Row]:
    """The branches that hold most of it, largest first within each; what is too small is summed up."""
    root = _Node()
    outside = 0
    for share in modules:
        if not share.name:
            outside += share.size_bytes
            continue
        _add(root, share)
    total = outside + root.size_bytes
    found = _listed(root, 0, max(int(total * SMALL), 1))
    if outside:
        tops = [*_branches(found), [Row(0, OUTSIDE, 1, outside)]]
        found = [row for branch in sorted(tops, key=lambda rows: -rows[0].size_bytes) for row in branch]
    return _shortened(found)


def _add(root: _Node, share: Share) -> None:
    node, path = root, ""
    node.size_bytes += share.size_bytes
    for part in share.name.split("."):
        path = f"{path}.{part}" if path else part
        node = node.children.setdefault("*" if part.isdigit() else part, _Node())
        node.size_bytes += share.size_bytes
        node.paths.add(path)


def _listed(node: _Node, depth: int, least: int) -> list[Row]:
    """The children of a node and what is below them. A child with a single child of the same size goes by both names."""
    found: list[Row] = []
    small = [child for child in node.children.values() if child.size_bytes < least]
    for name, child in sorted(node.children.items(), key=lambda item: (-item[1].size_bytes, item[0])):
        if child.size_bytes < least:
            continue
        while len(child.children) == 1:
            ((below, only),) = child.children.items()
            if only.size_bytes != child.size_bytes:
                break
            name, child = f"{name}.{below}", only
        found.append(Row(depth, name, len(child.paths), child.size_bytes))
        if depth + 1 < DEPTH:
            found += _listed(child, depth + 1, least)
    if small and depth == 0:
        count = sum(len(child.paths) for child in small)
        found.append(Row(0, f"{count} smaller", 1, sum(child.size_bytes for child in small)))
    return found


def _branches(found: list[Row]) -> list[list[Row]]:
    branches: list[list[Row]] = []
    for row in found:
        if row.depth == 0:
            branches.append([])
        branches[-1].append(row)
    return branches


def _shortened(found: list[Row]) -> list[Row]:
    """At most ROWS: the deepest level goes first, then what is smallest at the top is summed up."""
    for depth in range(DEPTH - 1, 0, -1):
        if len(found) <= ROWS:
            return found
        found = [row for row in found if row.depth < depth or (row.depth == depth and _many(found, depth))]
    if len(found) <= ROWS:
        return found
    kept, rest = found[: ROWS - 1], found[ROWS - 1 :]
    return [*kept, Row(0, f"{len(rest)} smaller", 1, sum(row.size_bytes for row in rest))]


def _many(found: list[Row], depth: int) -> bool:
    """Whether rows of this depth may stay: there are few."""
    return sum(row.depth <= depth for row in found) <= ROWS
