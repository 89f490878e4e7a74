"""One job's Ledger: the timeline's moments as entries, the peak in its three conventions, host memory, disk."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.jobs.job import Job
from loadmaster.memory import adapted, reserve, stacks
from loadmaster.memory.assumptions import assumptions
from loadmaster.memory.components import host, optimizer
from loadmaster.memory.entries import entries, entry, summed
from loadmaster.memory.inventory import as_run, rest_dtype
from loadmaster.memory.ledger import Entry, Ledger, Peak, PhaseTotal
from loadmaster.memory.parts import Moment
from loadmaster.memory.timeline import moments
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval, replace


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
    vram = {phase: entries(moment, job) for phase, moment in worst.items()}
    held = _held(spec, job, worst, compute_capability)
    bounds = _bounds(found, job, held)
    phases = tuple(
        PhaseTotal(phase=m.phase, moment=m.name, allocated=bounds[m.phase]) for m in worst.values()
    )
    most = _highest([p.allocated for p in phases])
    reserved = reserve.reserved(spec, job, most, compute_capability)
    ram, ram_peak, ram_phase = _host(spec, job)
    disk = [entry(part, "disk", "save") for part in host.disk(spec, job)]
    moved = [entry(part, "managed", "optimizer step") for part in (optimizer.paged(spec, job),) if part]
    size = summed(e.bytes for e in moved).likely
    process = reserved + (context or Interval.exact(0)) + Interval(low=0, likely=size, high=size)
    return Ledger(
        entries=(*(e for each in vram.values() for e in each), *moved, *ram, *disk),
        phases=phases,
        peak=Peak(phase=top.phase, moment=top.name, allocated=most, reserved=reserved, process=process),
        ram=ram_peak,
        ram_phase=ram_phase,
        disk=summed(e.bytes for e in disk),
        assumptions=assumptions(spec, job, compute_capability),
        warnings=spec.warnings + _warnings(spec, job),
        lower_bound=not stacks.works(spec),
    )


def allocated(spec: ModelSpec, job: Job, compute_capability: str | None = None) -> Interval:
    """The peak's allocated bytes alone, without entries' words, reserved bytes and the host: what a search compares."""
    spec = as_run(spec, job)
    found = moments(spec, job, compute_capability, detail=True)
    held = _held(spec, job, _worst(found), compute_capability)
    return _highest(list(_bounds(found, job, held).values()))


def _highest(phases: Sequence[Interval]) -> Interval:
    """The worst of all phases in each bound: another phase may reach higher than the likely peak's."""
    return Interval(
        low=max(p.low for p in phases), likely=max(p.likely for p in phases), high=max(p.high for p in phases)
    )


def _worst(found: list[Moment]) -> dict[str, Moment]:
    worst: dict[str, Moment] = {}
    for moment in found:
        if moment.phase not in worst or int(moment.total_bytes) > int(worst[moment.phase].total_bytes):
            worst[moment.phase] = moment
    return worst


def _held(spec: ModelSpec, job: Job, worst: dict[str, Moment], capability: str | None) -> dict[str, int]:
    """By phase, what more it takes if the loop keeps the model's outputs alive: the commonest unsaid difference."""
    if not job.training or job.outputs_held:
        return {}
    more = _worst(moments(spec, replace(job, outputs_held=True), capability, detail=False))
    return {phase: int(more[phase].total_bytes) - int(moment.total_bytes) for phase, moment in worst.items()}


def _bounds(found: list[Moment], job: Job, held: dict[str, int]) -> dict[str, Interval]:
    """Of each phase the highest of its moments in each bound: the likely peak need not be the one that can get highest, and
    with other sizes another moment would be it."""
    totals: dict[str, list[Interval]] = {}
    for moment in found:
        totals.setdefault(moment.phase, []).append(summed(e.bytes for e in entries(moment, job)))
    bounds = {phase: _highest(each) for phase, each in totals.items()}
    return {
        phase: replace(one, high=max(one.high, one.likely + held.get(phase, 0)))
        for phase, one in bounds.items()
    }


def _host(spec: ModelSpec, job: Job) -> tuple[list[Entry], Interval, str]:
    libraries = host.libraries()
    phases = {"load": [libraries, host.loading(spec, job)], "run": [libraries, *host.running(spec, job)]}
    if job.training:
        phases["save"] = [*phases["run"], host.saving(spec, job)]
    found = [entry(part, "ram", phase) for phase, parts in phases.items() for part in parts]
    totals = {phase: summed(e.bytes for e in found if e.phase == phase) for phase in phases}
    top = max(totals, key=lambda phase: totals[phase].likely)
    return found, totals[top], top


def _warnings(spec: ModelSpec, job: Job) -> tuple[str, ...]:
    found = []
    others = ", ".join(tower.name for tower in stacks.not_run(spec))
    if others:
        found.append(f"activations of {others} are not counted: only the weights of this part are")
    if job.quantization is not None:
        found += host.unpacked_experts(spec, job)
    found += adapted.warnings(spec, job, rest_dtype(job))
    return tuple(found)
