"""How many jobs a second ``memory.evaluate`` weighs on one core, checked job by job against the ledger of single jobs.

python benchmarks/evaluate.py [--jobs 200000] [--model meta-llama/Llama-3.1-8B]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from loadmaster.jobs.make import make_job
from loadmaster.memory import evaluate
from loadmaster.memory.timeline import moments
from loadmaster.models import read_model
from loadmaster.records import replace

CHECKED = 20


def main() -> None:
    """Time the arrays, time a list of Jobs, and compare some of them with one job at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
    arguments = parser.parse_args()
    spec, count = read_model(arguments.model), arguments.jobs
    rng = np.random.default_rng(0)
    columns = {
        "micro_batch": rng.integers(1, 64, count),
        "seq_len": rng.integers(64, 32768, count),
        "rank": rng.integers(1, 256, count),
        "checkpointing": rng.choice(["none", "full"], count),
        "attention": rng.choice(["sdpa", "eager"], count),
        "loss": rng.choice(["hf", "fused"], count),
    }
    base = make_job(method="lora")
    start = time.perf_counter()
    found = evaluate(spec, base, columns)
    rate(f"{count:,} jobs as arrays of six fields", count, start)

    jobs = [
        replace(base, micro_batch=int(batch), seq_len=int(length))
        for batch, length in zip(columns["micro_batch"], columns["seq_len"], strict=True)
    ]
    start = time.perf_counter()
    evaluate(spec, jobs)
    rate(f"{count:,} jobs as a list of Jobs", count, start)

    start = time.perf_counter()
    for index in range(CHECKED):
        job = replace(
            jobs[index],
            lora=replace(base.lora, rank=int(columns["rank"][index])),
            **{name: str(columns[name][index]) for name in ("checkpointing", "attention", "loss")},
        )
        alone = max(moment.total_bytes for moment in moments(spec, job, detail=False))
        assert alone == found["peak"][index], (job, alone, found["peak"][index])
    rate(f"{CHECKED} jobs one by one (equal to the arrays)", CHECKED, start)


def rate(what: str, count: int, start: float) -> None:
    """Print jobs a second."""
    print(f"{what:<50}{count / (time.perf_counter() - start):>14,.0f} jobs/s")


if __name__ == "__main__":
    main()
