"""One job's Ledger: the timeline's moments turned into entries, the three conventions of the peak, host memory, disk."""

from __future__ import annotations

from collections.abc import Iterable

from loadmaster.jobs.job import Job
from loadmaster.memory import reserve
from loadmaster.memory.assumptions import assumptions
from loadmaster.memory.components import host
from loadmaster.memory.inventory import as_run
from loadmaster.memory.ledger import Entry, Ledger, Peak, PhaseTotal, Tier
from loadmaster.memory.parts import Moment, Part
from loadmaster.memory.stacks import not_run
from loadmaster.memory.timeline import moments
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval, replace

ORIGINS = ("counted", "modelled", "table", "assumed")


def predict(
    spec: ModelSpec, job: Job, *, compute_capability: str | None = None, context: Interval | None = None
) -> Ledger:
    """The ledger of one job on one device of ``compute_capability`` whose CUDA context takes ``context`` bytes.

    Every number field of ``job`` is a plain int here. See ``evaluate`` for many jobs.
    """
    spec = as_run(spec, job)
    found = moments(spec, job, compute_capability, detail=True)
    worst = _worst(found)
    top = max(worst.values(), key=lambda m: int(m.total_bytes))
    spread = _spread(spec, job, compute_capability)
    phases = tuple(
        PhaseTotal(phase=m.phase, moment=m.name, allocated=_allocated(m, spread.get(m.phase, 0)))
        for m in worst.values()
    )
    allocated = next(p.allocated for p in phases if p.phase == top.phase)
    reserved = reserve.reserved(spec, job, allocated, compute_capability)
    vram = [entry for m in worst.values() for entry in _entries(m)]
    ram, ram_peak, ram_phase = _host(spec, job)
    disk = [_entry(part, "disk", "save") for part in host.disk(spec, job)]
    context = context or Interval.exact(0)
    return Ledger(
        entries=tuple(vram + ram + disk),
        phases=phases,
        peak=Peak(
            phase=top.phase,
            moment=top.name,
            allocated=allocated,
            reserved=reserved,
            process=reserved + context,
        ),
        ram=ram_peak,
        ram_phase=ram_phase,
        disk=_sum(e.bytes for e in disk),
        assumptions=assumptions(spec, job),
        warnings=spec.warnings + _not_counted(spec),
    )


def _worst(found: list[Moment]) -> dict[str, Moment]:
    worst: dict[str, Moment] = {}
    for moment in found:
        if moment.phase not in worst or int(moment.total_bytes) > int(worst[moment.phase].total_bytes):
            worst[moment.phase] = moment
    return worst


def _spread(spec: ModelSpec, job: Job, compute_capability: str | None) -> dict[str, int]:
    """By phase, what more it takes if the loop keeps the model's outputs alive: the commonest unsaid difference."""
    if not job.training or job.outputs_held:
        return {}
    held = moments(spec, replace(job, outputs_held=True), compute_capability, detail=False)
    base = moments(spec, job, compute_capability, detail=False)
    more = _worst(held)
    return {phase: int(more[phase].total_bytes) - int(m.total_bytes) for phase, m in _worst(base).items()}


def _allocated(moment: Moment, above: int) -> Interval:
    """Low: temporaries that a fused kernel would not need are half gone, and no second workspace; high: outputs are held."""
    low = high = likely = 0
    for part in moment.parts:
        size = int(part.size_bytes)
        likely += size
        high += int(part.high_bytes) if part.high_bytes is not None else size
        low += int(part.low_bytes) if part.low_bytes is not None else size
        if part.component == "temporaries":
            low -= _scratch(part) // 2
        if part.component == "workspace":
            low -= size
    return Interval(low=max(low, 0), likely=likely, high=high + above)


def _scratch(part: Part) -> int:
    if part.census is None:
        return 0
    return sum(size for (tag, _), size in part.census.items() if tag == "temporaries")


def _entries(moment: Moment) -> list[Entry]:
    """Pieces of one moment by component; a layer at work is split by what its tensors are."""
    grouped: dict[str, list[Part]] = {}
    for part in moment.parts:
        for piece in _split(part):
            grouped.setdefault(piece.component, []).append(piece)
    return [
        _merged(component, parts, moment.phase)
        for component, parts in grouped.items()
        if any(int(p.size_bytes) for p in parts)
    ]


def _split(part: Part) -> list[Part]:
    if part.component != "temporaries" or part.census is None:
        return [part]
    by_tag: dict[str, dict[tuple[str, str], int]] = {}
    for (tag, name), size in part.census.items():
        tag = {"autocast copies": "weight copies", "dequantised weights": "temporaries"}.get(tag, tag)
        by_tag.setdefault(tag, {})[tag, name] = size
    return [
        Part(
            tag,
            sum(pieces.values()),
            _words("the layer at work: ", pieces),
            part.source,
            part.origin,
            census=pieces,
        )
        for tag, pieces in by_tag.items()
    ]


def _words(lead: str, pieces: dict[tuple[str, str], int]):  # type: ignore[no-untyped-def]
    top = sorted(pieces.items(), key=lambda item: -item[1])[:4]
    return lambda: lead + ", ".join(f"{name} {size:,} B" for (_, name), size in top)


def _merged(component: str, parts: list[Part], phase: str) -> Entry:
    entry = _entry(parts[0], "vram", phase)
    tensors: dict[str, int] = {}
    for part in parts:
        for (_, name), size in (part.census or {}).items():
            tensors[name] = tensors.get(name, 0) + size
    total = _sum(_entry(p, "vram", phase).bytes for p in parts)
    formula = " + ".join(p.formula() for p in parts if int(p.size_bytes)) or entry.formula
    top = tuple(sorted(tensors.items(), key=lambda item: -item[1])[:12])
    origin = max((p.origin for p in parts), key=ORIGINS.index)
    return replace(entry, component=component, bytes=total, formula=formula, tensors=top, origin=origin)


def _entry(part: Part, tier: Tier, phase: str) -> Entry:
    size = int(part.size_bytes)
    low = size if part.low_bytes is None else int(part.low_bytes)
    high = size if part.high_bytes is None else int(part.high_bytes)
    return Entry(
        component=part.component,
        tier=tier,
        phase=phase,
        bytes=Interval(low=min(low, size), likely=size, high=max(high, size)),
        formula=part.formula(),
        source=part.source,
        origin=part.origin,  # type: ignore[arg-type]
    )


def _host(spec: ModelSpec, job: Job) -> tuple[list[Entry], Interval, str]:
    libraries = host.libraries()
    phases = {"load": [libraries, host.loading(spec, job)], "run": [libraries, *host.loader(job)]}
    if job.training:
        phases["save"] = [*phases["run"], host.saving(spec, job)]
    entries = [_entry(part, "ram", phase) for phase, parts in phases.items() for part in parts]
    totals = {phase: _sum(e.bytes for e in entries if e.phase == phase) for phase in phases}
    top = max(totals, key=lambda phase: totals[phase].likely)
    return entries, totals[top], top


def _sum(intervals: Iterable[Interval]) -> Interval:
    total = Interval.exact(0)
    for interval in intervals:
        total = total + interval
    return total


def _not_counted(spec: ModelSpec) -> tuple[str, ...]:
    others = ", ".join(tower.name for tower in not_run(spec))
    return (f"activations of {others} are not counted: only the weights of this part are",) if others else ()
