"""Full activation checkpointing: each layer keeps its input alone and is run again in backward (arXiv:1604.06174), one
more forward pass in three: about a third more time in the layers."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "checkpointing"
NUMERICS = "identical"
SPEED = "about 1.3 × the time (one more forward pass)"
PENALTY = 4
REPEATS = False


def applies(job: Job) -> bool:
    """Training in which not every layer is run again."""
    return job.training and job.checkpointing != "full"


def apply(job: Job) -> Job:
    """The job with full checkpointing."""
    return replace(job, checkpointing="full")


def text(job: Job) -> str:
    """What to do."""
    return "gradient checkpointing, every layer"
