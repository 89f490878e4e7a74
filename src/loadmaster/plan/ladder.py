"""The ladder: what each change is worth alone, and the first combination that fits.

Changes are tried in the order of what they cost the person (``changes.PENALTY``): first those that give the same result
at the same speed, last those that train something else. Moves that turned out not to be needed are taken out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from loadmaster.jobs.job import Job
from loadmaster.plan.plan import Combination, Rung, Verdict
from loadmaster.plan.search import Search

_TRIES = 40


def single_changes(search: Search, job: Job) -> tuple[Rung, ...]:
    """Every change that applies and saves 1 % or makes the job fit, alone, largest saving first."""
    asked = search.peak_bytes(job)
    rungs = []
    for change in search.changes(job):
        changed = change.apply(job)
        peak = search.peak_bytes(changed)
        result = search.verdict(changed) if peak <= search.limit_bytes else "does_not_fit"
        if peak >= asked or (result == "does_not_fit" and (asked - peak) * 100 < asked):
            continue
        rungs.append(
            Rung(
                change=change.NAME,
                text=change.text(job),
                numerics=change.NUMERICS,
                speed=change.SPEED,
                allocated_bytes=peak,
                saved_bytes=asked - peak,
                verdict=result,
            )
        )
    return tuple(sorted(rungs, key=lambda r: -r.saved_bytes))


def first_that_fits(search: Search, job: Job) -> Combination | None:
    """Apply changes, cheapest for the person first, until the job fits; then drop those that were not needed.

    A combination that is only tight is kept while one is looked for that fits with room, as long as that needs no change
    of results which the tight one doesn't need. None when even all changes together don't fit.
    """
    tight: list[ModuleType] | None = None
    taken: list[ModuleType] = []
    now = job
    for _ in range(_TRIES):
        if taken and search.verdict(now) == "fits":
            needed = _settle(search, job, taken, ("fits",))
            return _judged(
                search, job, needed if tight is None or not _changes_results(needed, tight) else tight
            )
        if taken and tight is None and search.verdict(now) == "tight":
            tight = _settle(search, job, taken, ("fits", "tight"))
        change = _next(search, now, taken)
        if change is None:
            break
        taken.append(change)
        now = change.apply(now)
    return None if tight is None else _judged(search, job, tight)


def least_bytes(search: Search, job: Job) -> int:
    """Allocated bytes of the peak when every change that lowers it is made, cheapest first."""
    taken: list[ModuleType] = []
    for _ in range(_TRIES):
        change = _next(search, job, taken)
        if change is None:
            break
        taken.append(change)
        job = change.apply(job)
    return search.peak_bytes(job)


def _next(search: Search, now: Job, taken: Sequence[ModuleType]) -> ModuleType | None:
    """The cheapest change not yet taken that lowers the peak."""
    names = {change.NAME for change in taken}
    for change in search.changes(now):
        if (change.NAME not in names or change.REPEATS) and search.peak_bytes(
            change.apply(now)
        ) < search.peak_bytes(now):
            return change
    return None


def _changes_results(found: Sequence[ModuleType], tight: Sequence[ModuleType]) -> bool:
    """Whether one combination changes results where the other doesn't."""
    known = {change.NAME for change in tight}
    return any(change.NUMERICS == "different" and change.NAME not in known for change in found)


def _settle(
    search: Search, job: Job, taken: Sequence[ModuleType], enough: Sequence[Verdict]
) -> list[ModuleType]:
    """The changes of ``taken`` that are needed for a verdict that is ``enough``, dearest dropped first if it can be."""
    needed = list(taken)
    for change in sorted(taken, key=lambda c: -c.PENALTY):
        without = list(needed)
        without.remove(change)
        if without and search.verdict(_apply(job, without)) in enough:
            needed = without
    return needed


def _apply(job: Job, taken: Sequence[ModuleType]) -> Job:
    for change in taken:
        if change.applies(job):
            job = change.apply(job)
    return job


def _judged(search: Search, job: Job, taken: Sequence[ModuleType]) -> Combination:
    texts: dict[str, str] = {}
    now = job
    for change in taken:
        if change.applies(now):
            texts[change.NAME] = change.text(now)
            now = change.apply(now)
    ledger, result = search.judged(now)
    return Combination(
        changes=tuple(texts), texts=tuple(texts.values()), job=now, ledger=ledger, verdict=result
    )
