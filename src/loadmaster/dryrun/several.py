"""A model by name over several GPUs: every kind of rank is simulated, the worst is the answer."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.layouts.describe import Parallel
from loadmaster.dryrun.programs.simulate import simulate
from loadmaster.dryrun.request import Request
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job
from loadmaster.records import replace


def simulate_several(
    request: Request, job: Job, fields: dict[str, Any], parallel: Parallel, progress: Any
) -> DryRun:
    """As ``simulate``, on each kind of rank of ``parallel``; raises UsageError for what can't be split."""
    from loadmaster.dryrun.layouts.apply import roles, wrap
    from loadmaster.dryrun.layouts.run import simulate_ranks
    from loadmaster.dryrun.programs.loading import load

    if job.quantization is not None:
        raise BadValueError("--gpus", parallel.gpus, "1 for packed weights: they aren't split in a dry run")
    if not job.training and parallel.data_parallel > 1 and parallel.strategy == "ddp":
        raise BadValueError("--strategy", "ddp", "--tensor-parallel or fsdp2 for inference: DDP only trains")

    def run_one(rank: int) -> DryRun:
        return simulate(
            fields, request.name, job, request.card, conf=request.conf, steps=request.steps,
            progress=lambda stage, share: progress(f"rank {rank}: {stage}", share), context_bytes=request.context_bytes,
            onto=lambda session, model: wrap(session, model, parallel, rank), assume=request.assume,
        )  # fmt: skip

    found = simulate_ranks(run_one, roles(parallel, load(fields, request.name, job).model))
    return replace(found, program=f"{found.program} on {parallel}")
