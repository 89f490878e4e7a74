"""Weights, gradients and optimizer states in bfloat16: half the bytes; small updates can be lost to rounding."""

from __future__ import annotations

from loadmaster.jobs.job import Job, Precision
from loadmaster.records import replace

NAME = "bf16_weights"
NUMERICS = "different"
SPEED = "same or faster"
PENALTY = 6
REPEATS = False


def applies(job: Job) -> bool:
    """Weights are held in float32."""
    return job.precision.weights == "float32" and job.quantization is None


def apply(job: Job) -> Job:
    """The job with everything in bfloat16."""
    return replace(job, precision=Precision(weights="bfloat16"))


def text(job: Job) -> str:
    """What to do."""
    return "weights and states in bf16"
