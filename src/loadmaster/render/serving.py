"""What a server's budget leaves to KV cache, for a terminal."""

from __future__ import annotations

from loadmaster.memory.serving import Budget
from loadmaster.plan import Plan
from loadmaster.render.sizes import apart
from loadmaster.render.terminal import Cell, Look, table


def serving(plan: Plan, look: Look) -> list[str]:
    """How the pool comes about, and what fits it; nothing for a library that has no pool."""
    budget = plan.budget
    if budget is None:
        return []
    rows: list[list[Cell]] = [
        [(budget.engine, "bold"), (f"{terms(plan, budget)} = {apart(budget.pool.likely)} for KV cache", "")],
        [("", ""), (holds(plan, budget), "bold" if budget.starts else "bold,red")],
    ]
    return table(rows, look, indent="")


def holds(plan: Plan, budget: Budget) -> str:
    """``421,312 tokens, 26 sequences of 16,000``, or why the server would not start."""
    length = f"{plan.job.seq_len:,} tokens"
    if not budget.starts:
        return (
            f"one sequence of {length} takes {apart(budget.sequence_bytes)}: {budget.engine} would not start"
        )
    count = f"{budget.sequences:,} sequence{'s' if budget.sequences != 1 else ''} of {length}"
    waiting = plan.job.micro_batch - budget.sequences
    what = "would wait" if budget.engine == "vllm" else "would not fit"
    more = f"; {waiting:,} of {plan.job.micro_batch:,} {what}" if waiting > 0 else ""
    return f"{budget.tokens:,} tokens in blocks of {budget.block_tokens}: {count} at once{more}"


def terms(plan: Plan, budget: Budget) -> str:
    """``0.9 × 79.2 GiB − weights 15.0 GiB − ...``: what the pool is the rest of."""
    share = f"{plan.job.memory_utilization:g} × {apart(budget.total_bytes)}"
    asked = share if budget.engine == "vllm" else apart(budget.requested_bytes)
    work = "profile run" if budget.engine == "vllm" else "compute buffer"
    terms = f"{asked} − weights {apart(budget.weights_bytes)} − {work} {apart(budget.work_bytes)}"
    return f"{terms} − other {apart(budget.other_bytes)}" if budget.other_bytes else terms
