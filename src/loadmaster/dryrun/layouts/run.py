"""Every kind of rank of a job, one after the other; the worst is the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from loadmaster.dryrun.result import DryRun, Rank
from loadmaster.records import replace


class Role(NamedTuple):
    """Ranks that hold the same; the first of them stands for all."""

    name: str
    ranks: tuple[int, ...]


def simulate_ranks(run_one: Callable[[int], DryRun], roles: Sequence[Role]) -> DryRun:
    """The worst of the roles, with all of them in ``ranks``: one that runs out of memory, else the one with the highest
    allocated bytes, of equal ones the one that reserves more, of equal ones the first.

    ``run_one`` simulates the rank of that number in a session of its own.
    """
    found = [(role, run_one(role.ranks[0])) for role in roles]
    _, worst = max(found, key=lambda each: _weight(each[1]))
    ranks = tuple(
        Rank(
            name=role.name,
            ranks=role.ranks,
            allocated_bytes=run.peak_allocated_bytes,
            reserved_bytes=run.peak_reserved_bytes,
        )
        for role, run in found
    )
    return replace(worst, ranks=ranks)


def _weight(run: DryRun) -> tuple[bool, int, int]:
    return run.oom is not None, run.peak_allocated_bytes, run.peak_reserved_bytes
