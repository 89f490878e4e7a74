"""8-bit optimizer states (bitsandbytes, arXiv:2110.02861): two bytes a parameter instead of eight."""

from __future__ import annotations

from loadmaster.jobs.job import Job, Optimizer
from loadmaster.records import replace

NAME = "optimizer_8bit"
NUMERICS = "close"
SPEED = "about the same"
PENALTY = 5
REPEATS = False


def applies(job: Job) -> bool:
    """Training with AdamW."""
    return job.training and job.optimizer.name == "adamw"


def apply(job: Job) -> Job:
    """The job with 8-bit AdamW."""
    return replace(job, optimizer=Optimizer(name="adamw_8bit", implementation="fused"))


def text(job: Job) -> str:
    """What to do."""
    return "8-bit AdamW (bitsandbytes)"
