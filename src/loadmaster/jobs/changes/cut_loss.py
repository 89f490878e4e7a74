"""Cut cross-entropy (Apple, arXiv:2411.09009): logits are never in memory; gradients smaller than a 16-bit sum can hold are
left out (§4.3), and it takes 16-bit products."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "cut_loss"
NUMERICS = "close"
SPEED = "about the same"
PENALTY = 2
REPEATS = False


def applies(job: Job) -> bool:
    """Training with another loss and 16-bit products in the output projection, which 4-bit loading leaves as it is."""
    return (
        job.training and job.loss != "cut" and (job.precision.autocast or job.precision.weights) != "float32"
    )


def apply(job: Job) -> Job:
    """The job with cut cross-entropy."""
    return replace(job, loss="cut")


def text(job: Job) -> str:
    """What to do."""
    return "cut cross-entropy (Apple): no logits"
