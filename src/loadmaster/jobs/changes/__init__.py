"""Changes: moves that save memory, one file each: does it apply, Job → Job, what it does to results and speed.

A file has NAME, NUMERICS (identical, close, different), SPEED (words, with their source in the docstring), PENALTY (how
dear it is to the person: the order in which combinations are tried), REPEATS (may be taken again), TO_HOST where it moves
bytes to host memory, ``applies(job)``,
``apply(job)`` and ``text(job)``, what to do in a few words.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from loadmaster.jobs.job import Job


@cache
def every() -> tuple[ModuleType, ...]:
    """All changes, cheapest for the person first."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    modules = [importlib.import_module(f"loadmaster.jobs.changes.{name}") for name in names]
    return tuple(sorted(modules, key=lambda m: (m.PENALTY, m.NAME)))


def applicable(job: Job, *, host_apart: bool = True) -> list[ModuleType]:
    """The changes that apply to a job, cheapest first; ``host_apart`` False: the device's memory is the host's, so that
    nothing is won by moving bytes there."""
    return [
        change
        for change in every()
        if change.applies(job) and (host_apart or not getattr(change, "TO_HOST", False))
    ]
