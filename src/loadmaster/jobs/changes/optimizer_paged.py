"""Paged AdamW (bitsandbytes, QLoRA: arXiv:2305.14314 §3): states in memory that the driver moves to RAM when the card is full."""

from __future__ import annotations

from loadmaster.jobs.job import Job, Optimizer
from loadmaster.records import replace

NAME = "optimizer_paged"
NUMERICS = "close"
SPEED = "the same while there is room; slow where states move in every step"
PENALTY = 6
REPEATS = False
TO_HOST = True
PAGED = {"adamw": "paged_adamw", "adamw_8bit": "paged_adamw_8bit"}


def applies(job: Job) -> bool:
    """Training with an AdamW that has a paged sibling."""
    return job.training and job.optimizer.name in PAGED and "optimizer" not in job.offload


def apply(job: Job) -> Job:
    """The job with the paged sibling."""
    return replace(job, optimizer=Optimizer(name=PAGED[job.optimizer.name], implementation="fused"))


def text(job: Job) -> str:
    """What to do."""
    return f"{PAGED[job.optimizer.name]} (bitsandbytes): states move to RAM when the card is full"
