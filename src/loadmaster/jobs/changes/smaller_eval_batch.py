"""Half the evaluation batch: each sequence's loss is its own, so the figures stay."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "smaller_eval_batch"
NUMERICS = "identical"
SPEED = "evaluation somewhat slower"
PENALTY = 1
REPEATS = True


def applies(job: Job) -> bool:
    """Training with an evaluation of more than one sequence at once."""
    return job.training and job.eval_batch is not None and job.eval_batch > 1


def apply(job: Job) -> Job:
    """The job with half the evaluation batch."""
    return replace(job, eval_batch=(job.eval_batch or 2) // 2)


def text(job: Job) -> str:
    """What to do."""
    return f"evaluation batch {(job.eval_batch or 2) // 2}"
