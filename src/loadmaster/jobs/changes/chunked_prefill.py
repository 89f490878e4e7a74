"""The prompt in pieces: temporaries of a layer are those of one piece, not of the whole prompt; results are the same."""

from __future__ import annotations

from loadmaster.arrays import minimum
from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "chunked_prefill"
NUMERICS = "identical"
SPEED = "about the same for long prompts"
PENALTY = 1
REPEATS = False
CHUNK = 512


def applies(job: Job) -> bool:
    """Inference that takes a longer prompt at once."""
    return not job.training and job.prefill_chunk is None and job.seq_len - job.new_tokens > CHUNK


def apply(job: Job) -> Job:
    """The job with pieces of 512 tokens."""
    return replace(job, prefill_chunk=minimum(CHUNK, job.seq_len))


def text(job: Job) -> str:
    """What to do."""
    return f"prefill in pieces of {CHUNK} tokens"
