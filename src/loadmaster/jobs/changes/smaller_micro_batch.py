"""Half the micro-batch and twice the accumulation: the same global batch, so the same gradient up to rounding."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "smaller_micro_batch"
NUMERICS = "close"
SPEED = "somewhat slower: smaller kernels"
PENALTY = 3
REPEATS = True


def applies(job: Job) -> bool:
    """Training with an even micro-batch, so that the global batch can be kept."""
    return job.training and job.micro_batch > 1 and job.micro_batch % 2 == 0


def apply(job: Job) -> Job:
    """The job with half the micro-batch and twice the accumulation."""
    return replace(job, micro_batch=job.micro_batch // 2, grad_accumulation=job.grad_accumulation * 2)


def text(job: Job) -> str:
    """What to do."""
    return f"micro-batch {job.micro_batch // 2} × {job.grad_accumulation * 2} accumulation steps"
