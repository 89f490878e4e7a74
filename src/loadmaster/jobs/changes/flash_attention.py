"""SDPA instead of eager attention: the scores matrix is never stored (arXiv:2205.14135); results differ by rounding."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "flash_attention"
NUMERICS = "close"
SPEED = "faster"
PENALTY = 0
REPEATS = False


def applies(job: Job) -> bool:
    """Eager or math attention is asked for."""
    return job.attention in ("eager", "math")


def apply(job: Job) -> Job:
    """The job with SDPA."""
    return replace(job, attention="sdpa")


def text(job: Job) -> str:
    """What to do."""
    return "SDPA / flash attention instead of eager"
