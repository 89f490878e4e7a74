"""Each parameter is updated as soon as its gradient is there, which is then freed (PyTorch tutorial "How to save memory by
fusing the optimizer step into the backward pass"; LOMO, arXiv:2306.09782): gradients are never there together, so they
can't be accumulated or clipped by their common norm."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "optimizer_in_backward"
NUMERICS = "close"
SPEED = "about the same; no clipping by the norm of all gradients"
PENALTY = 5
REPEATS = False


def applies(job: Job) -> bool:
    """Training without accumulation whose optimizer steps on the card, on weights without a master copy."""
    return (
        job.training
        and not job.optimizer_in_backward
        and isinstance(job.grad_accumulation, int)
        and job.grad_accumulation == 1
        and "optimizer" not in job.offload
        and job.precision.master is None
    )


def apply(job: Job) -> Job:
    """The job with the step in backward."""
    return replace(job, optimizer_in_backward=True)


def text(job: Job) -> str:
    """What to do."""
    return "optimizer step inside backward: gradients freed one by one"
