"""What becomes of each field of a Job in a dry run: done, or refused in one sentence; nothing is passed over in silence."""

from __future__ import annotations

from loadmaster.jobs.job import Job

KERNELS = ("flash", "efficient", "math")


def check(job: Job) -> tuple[str, ...]:
    """Notes for the report; raises BadValueError for a field that a dry run can't do."""
    return ()


def kernel(job: Job) -> str | None:
    """The kernel of scaled_dot_product_attention that the job asks for by name."""
    return job.attention if job.attention in KERNELS else None


def attention(job: Job) -> str:
    """transformers' name of the implementation of attention."""
    return "eager" if job.attention == "eager" else "sdpa"
