"""The ladder: what each change is worth alone, and the first combination that fits.

Changes are tried in the order of what they cost the person (``changes.PENALTY``): first those that give the same result
at the same speed, last those that train something else. Moves that turned out not to be needed are taken out again.
"""

from __future__ import annotations

from types import ModuleType

from loadmaster.hardware import Usable
from loadmaster.jobs import changes
from loadmaster.jobs.job import Job
from loadmaster.memory import Ledger, predict
from loadmaster.memory.timeline import moments
from loadmaster.models.spec import ModelSpec
from loadmaster.plan.plan import Combination, Rung
from loadmaster.plan.verdict import verdict


def peak_bytes(spec: ModelSpec, job: Job, capability: str | None) -> int:
    """Likely allocated bytes of a job's highest moment: the quick figure the search compares."""
    return max(int(m.total_bytes) for m in moments(spec, job, capability, detail=False))


def single_changes(
    spec: ModelSpec, job: Job, ledger: Ledger, room: Usable, capability: str | None
) -> tuple[Rung, ...]:
    """Every change that applies, alone, largest saving first."""
    asked = ledger.peak.allocated.likely
    rungs = []
    for change in changes.applicable(job):
        peak = peak_bytes(spec, change.apply(job), capability)
        rungs.append(
            Rung(
                change=change.NAME,
                text=change.text(job),
                numerics=change.NUMERICS,
                speed=change.SPEED,
                allocated_bytes=peak,
                saved_bytes=asked - peak,
                fits=peak <= room.usable_bytes.likely,
            )
        )
    return tuple(sorted((r for r in rungs if r.saved_bytes > 0), key=lambda r: -r.saved_bytes))


def first_that_fits(spec: ModelSpec, job: Job, room: Usable, capability: str | None) -> Combination | None:
    """Apply changes, cheapest for the person first, until the job fits; then drop those that were not needed.

    A combination that is only tight is kept while one is looked for that fits with room, as long as that needs no change
    of results which the tight one doesn't need. None when even all changes together don't fit.
    """
    limit, tight, taken, now = room.usable_bytes.likely, None, [], job
    for _ in range(_TRIES):
        needed = _settle(spec, job, taken, limit, capability)
        if needed is not None:
            found = _judged(spec, job, needed, room, capability)
            if found.verdict == "fits":
                return found if tight is None or not _changes_results(found, tight) else tight
            tight = tight or (found if found.verdict == "tight" else None)
            # What stays reserved was too much: the next combination has to leave at least that much more.
            limit = min(
                limit - 1,
                2 * room.usable_bytes.likely - found.ledger.peak.reserved.likely,
                found.ledger.peak.allocated.likely - 1,
            )
            continue
        change = _next(spec, job, now, taken, capability)
        if change is None:
            return tight
        taken.append(change)
        now = change.apply(now)
    return tight


_TRIES = 40


def _next(
    spec: ModelSpec, job: Job, now: Job, taken: list[ModuleType], capability: str | None
) -> ModuleType | None:
    """The cheapest change not yet taken that lowers the peak."""
    names = {t.NAME for t in taken}
    for change in changes.applicable(now):
        if (change.NAME not in names or change.REPEATS) and peak_bytes(
            spec, change.apply(now), capability
        ) < peak_bytes(spec, now, capability):
            return change
    return None


def _changes_results(found: Combination, tight: Combination) -> bool:
    different = {c.NAME for c in changes.every() if c.NUMERICS == "different"}
    return bool(different & set(found.changes) - set(tight.changes))


def _settle(
    spec: ModelSpec, job: Job, taken: list[ModuleType], limit: int, capability: str | None
) -> list[ModuleType] | None:
    """The changes of ``taken`` that are needed to get under ``limit``, dearest dropped first if it can be."""
    if not taken or peak_bytes(spec, _apply(job, taken), capability) > limit:
        return None
    needed = list(taken)
    for change in sorted(taken, key=lambda c: -c.PENALTY):
        without = list(needed)
        without.remove(change)
        if without and peak_bytes(spec, _apply(job, without), capability) <= limit:
            needed = without
    return needed


def _apply(job: Job, taken: list[ModuleType]) -> Job:
    for change in taken:
        if change.applies(job):
            job = change.apply(job)
    return job


def _judged(
    spec: ModelSpec, job: Job, taken: list[ModuleType], room: Usable, capability: str | None
) -> Combination:
    texts: dict[str, str] = {}
    now = job
    for change in taken:
        if change.applies(now):
            texts[change.NAME] = change.text(now)
            now = change.apply(now)
    ledger = predict(spec, now, compute_capability=capability, context=room.context_bytes)
    result = verdict(spec, now, ledger, room.usable_bytes, capability)
    return Combination(
        changes=tuple(texts), texts=tuple(texts.values()), job=now, ledger=ledger, verdict=result
    )
