"""The moments of a step at which memory can be highest, and everything that lives at each.

Between two such moments live bytes change in one direction (layers of a kind free and allocate the same), so the
highest point of a phase is one of its moments. A peak is the largest moment, not a sum of each component's own peak.
"""

from __future__ import annotations

from functools import lru_cache

from loadmaster.jobs.job import Job
from loadmaster.memory.adapted import as_adapted
from loadmaster.memory.inference import Inference
from loadmaster.memory.inventory import as_run
from loadmaster.memory.parts import Moment
from loadmaster.memory.serving import Served
from loadmaster.memory.training import Training
from loadmaster.models.spec import ModelSpec


def moments(
    spec: ModelSpec, job: Job, compute_capability: str | None = None, *, detail: bool
) -> list[Moment]:
    """Every candidate for the peak, in the order of a step. ``detail``: with the pieces of each (plain ints only)."""
    run = (
        detailed(as_run(spec, job), job, compute_capability)
        if detail
        else at_work(spec, job, compute_capability, detail=False)
    )
    return run.moments()


@lru_cache(maxsize=4)
def detailed(spec: ModelSpec, job: Job, compute_capability: str | None) -> Training | Inference | Served:
    """``at_work`` with the pieces of every tensor, kept for whoever asks next: the entries, then the replay."""
    return at_work(spec, job, compute_capability, detail=True)


def at_work(
    spec: ModelSpec, job: Job, compute_capability: str | None = None, *, detail: bool
) -> Training | Inference | Served:
    """The job as it runs, with the cost of every layer."""
    spec, job = as_run(spec, job), as_adapted(spec, job)
    if job.training:
        return Training(spec, job, compute_capability, detail=detail)
    if job.facts.engine is not None:
        return Served(spec, job, compute_capability)
    return Inference(spec, job, compute_capability, detail=detail)
