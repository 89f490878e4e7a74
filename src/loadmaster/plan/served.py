"""Verdicts of servers that fill the card by a budget of their own: what counts is what the budget leaves to KV cache."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory import Ledger
from loadmaster.memory.serving import Budget
from loadmaster.plan.plan import Verdict
from loadmaster.records import Interval, replace


def at_once(job: Job, pool: Budget) -> Job:
    """The job with as many sequences as run at once: vLLM lets the others wait, llama.cpp makes the cache of all of them."""
    if pool.engine != "vllm":
        return job
    return replace(job, micro_batch=max(1, min(job.micro_batch, pool.sequences)))


def judged(
    job: Job, pool: Budget, ledger: Ledger, verdict: Verdict, margin_bytes: int
) -> tuple[Ledger, Verdict, int]:
    """The ledger, verdict and margin of a server: without room for one sequence it refuses to start; a vLLM that starts takes
    its whole budget, whatever the sequences need, and is tight where some of them have to wait."""
    if not pool.starts:
        return ledger, "does_not_fit", min(margin_bytes, pool.pool.likely - pool.sequence_bytes)
    if pool.engine != "vllm":
        return ledger, verdict, margin_bytes
    taken = pool.requested_bytes
    peak = replace(
        ledger.peak, reserved=Interval.exact(taken - pool.other_bytes), process=Interval.exact(taken)
    )
    waiting = job.micro_batch > pool.sequences
    left = pool.pool.likely - pool.sequence_bytes * min(job.micro_batch, pool.sequences)
    return replace(ledger, peak=peak), "tight" if waiting else "fits", left
