"""The fused implementation of the optimizer: no parameter-sized temporary in the step (torch/optim, fused=True)."""

from __future__ import annotations

from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "fused_optimizer"
NUMERICS = "close"
SPEED = "same or faster"
PENALTY = 1
REPEATS = False


def applies(job: Job) -> bool:
    """Training with an optimizer that has a fused implementation and doesn't use it."""
    return (
        job.training
        and job.optimizer.implementation != "fused"
        and "fused" in optimizers.find(job.optimizer.name).IMPLEMENTATIONS
    )


def apply(job: Job) -> Job:
    """The job with the fused optimizer."""
    return replace(job, optimizer=replace(job.optimizer, implementation="fused"))


def text(job: Job) -> str:
    """What to do."""
    return f"fused {job.optimizer.name} (fused=True)"
