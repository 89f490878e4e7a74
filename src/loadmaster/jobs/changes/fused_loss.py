"""Fused linear cross-entropy (Liger-Kernel, arXiv:2410.10989 §3.2): logits exist a chunk at a time, never all in float32."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "fused_loss"
NUMERICS = "close"
SPEED = "about the same"
PENALTY = 1
REPEATS = False


def applies(job: Job) -> bool:
    """Training with a loss that holds all logits."""
    return job.training and job.loss not in ("fused", "cut")


def apply(job: Job) -> Job:
    """The job with the fused loss."""
    return replace(job, loss="fused")


def text(job: Job) -> str:
    """What to do."""
    return "fused cross-entropy (Liger)"
