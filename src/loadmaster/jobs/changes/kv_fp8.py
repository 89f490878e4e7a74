"""Keys and values cached in 8-bit floats: half the cache (as vLLM's --kv-cache-dtype fp8 does)."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "kv_fp8"
NUMERICS = "different"
SPEED = "same or faster"
PENALTY = 5
REPEATS = False


def applies(job: Job) -> bool:
    """Inference with a 16- or 32-bit cache, but in llama.cpp, which has formats of its own."""
    wide = (job.kv_dtype or job.compute_dtype) in ("float32", "float16", "bfloat16")
    return not job.training and job.kv_cache and wide and job.facts.engine != "llama.cpp"


def apply(job: Job) -> Job:
    """The job with an 8-bit cache."""
    return replace(job, kv_dtype="float8_e4m3")


def text(job: Job) -> str:
    """What to do."""
    return "KV cache in fp8"
