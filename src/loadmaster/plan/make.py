"""The door of the room: a job on a device becomes a Plan."""

from __future__ import annotations

from loadmaster.hardware import Device, Host, usable
from loadmaster.jobs.job import Job
from loadmaster.memory import predict
from loadmaster.memory.serving import budget
from loadmaster.models.spec import ModelSpec
from loadmaster.plan import served
from loadmaster.plan.ladder import first_that_fits, least_bytes, single_changes
from loadmaster.plan.plan import Combination, Plan, Rung
from loadmaster.plan.search import Search
from loadmaster.plan.verdict import margin_bytes, ram_verdict


def make_plan(spec: ModelSpec, job: Job, device: Device | None, host: Host | None = None) -> Plan:
    """Predict, judge, and when the job doesn't fit, weigh every single change and search the first combination that does.

    ``device`` None: the ledger alone, without a verdict. ``host``: judge RAM too.
    """
    if device is None:
        ledger = predict(spec, job)
        ram = ram_verdict(ledger, host.usable_ram_bytes if host else None)
        return Plan(
            model=spec,
            job=job,
            device=None,
            host=host,
            usable=None,
            ledger=ledger,
            verdict=None,
            margin_bytes=None,
            ram_verdict=ram,
        )
    room = usable(device, host)
    search = Search(spec, room, device)
    pool = budget(spec, job, room.visible_bytes, room.usable_bytes, device.gpu.compute_capability)
    ledger, result = search.judged(job if pool is None else served.at_once(job, pool))
    margin = margin_bytes(ledger, room.usable_bytes)
    if pool is not None:
        ledger, result, margin = served.judged(job, pool, ledger, result, margin)
    least: int | None = None
    ladder: tuple[Rung, ...] = ()
    fitting: Combination | None = None
    if result == "does_not_fit":
        ladder = single_changes(search, job)
        fitting = first_that_fits(search, job)
        least = least_bytes(search, job) if fitting is None else None
    # What the weights take can rule a card out, but not in.
    known = result == "does_not_fit" or not ledger.lower_bound
    return Plan(
        model=spec,
        job=job,
        device=device,
        host=host,
        usable=room,
        ledger=ledger,
        verdict=result if known else None,
        margin_bytes=margin if known else None,
        ram_verdict=ram_verdict(ledger, host.usable_ram_bytes if host else None),
        ladder=ladder,
        fitting=fitting,
        budget=pool,
        least_bytes=least,
        notes=device.assumed,
    )
