"""Optimizer states, and what a step allocates besides."""

from __future__ import annotations

from loadmaster.arrays import Size, maximum, rounded
from loadmaster.dtypes import itemsize
from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Job
from loadmaster.memory.inventory import Held, trained
from loadmaster.memory.parts import Part
from loadmaster.models.spec import ModelSpec


def states(spec: ModelSpec, job: Job) -> Part:
    """What the optimizer keeps from its first step on."""
    module = optimizers.find(job.optimizer.name)
    held = trained(spec, job)
    total: Size = 0
    for h in held:
        total = total + rounded(state_bytes(job, h)) * h.count

    def formula() -> str:
        values = sum(int(h.elements) * h.count for h in held)
        return (
            f"{job.optimizer.name}: {int(total) / max(values, 1):.3g} B for each of {values:,} trained values"
        )

    return Part("optimizer states", total, formula, module.SOURCE)


def state_bytes(job: Job, held: Held) -> Size:
    """State bytes of one copy of a tensor."""
    module = optimizers.find(job.optimizer.name)
    if job.facts.wide_embedding_states and held.role == "embedding" and module.NAME.endswith("_8bit"):
        states: int = module.STATES
        return 4 * states * held.elements
    found: Size = module.state_bytes(held.elements, held.dtype)
    return found


def step_temporaries(spec: ModelSpec, job: Job) -> Part:
    """The highest temporary of ``optimizer.step()``."""
    module = optimizers.find(job.optimizer.name)
    moment: Size = 0
    largest: Size = 0
    for h in trained(spec, job):
        one = rounded(h.elements * itemsize(h.dtype))
        moment = moment + one * h.count
        largest = maximum(largest, one)
    total = module.step_bytes(job.optimizer.implementation, moment, largest)

    def formula() -> str:
        return f"{job.optimizer.implementation} {job.optimizer.name}: {int(total):,} B"

    return Part("temporaries", total, formula, module.SOURCE)
