"""Reserved bytes of a job: two steps, or a prefill, replayed through the allocator's rules."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory import timeline
from loadmaster.memory.components import kv_cache
from loadmaster.memory.inventory import adapters, gradient_bytes, parameters, trained
from loadmaster.memory.replay import Replay, inference, training
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval
from loadmaster.units import MIB


def reserved(spec: ModelSpec, job: Job, allocated: Interval, compute_capability: str | None) -> Interval:
    """Peak of max_memory_reserved. Low: expandable segments, which leave only 2 MiB pages unused; likely: the replay with
    default segments; high: as much unused again, for lengths that change from batch to batch."""
    replay = replayed(spec, job, compute_capability)
    unused = max(0, replay.allocator.peak_reserved_bytes - replay.allocator.peak_allocated_bytes)
    low = -(-allocated.low // (2 * MIB)) * 2 * MIB
    likely = allocated.likely + unused
    return Interval(low=min(low, likely), likely=likely, high=max(allocated.high + 2 * unused, likely))


def replayed(
    spec: ModelSpec, job: Job, compute_capability: str | None, capacity_bytes: int | None = None
) -> Replay:
    """The job's blocks on an allocator of ``capacity_bytes``; raises allocator.OutOfMemory where CUDA would."""
    replay = Replay(capacity_bytes)
    for index, held in enumerate([*parameters(spec, job), *adapters(spec, job)]):
        replay.keep(("weight", index), [int(held.size_bytes) // held.count] * held.count)
    if job.training:
        run = timeline.Training(spec, job, compute_capability, detail=True)
        layers = run.layers
        tables = [int(gradient_bytes(h)) for h in trained(spec, job) if h.role in ("embedding", "position")]
        tables *= 2 if spec.head is not None and spec.head.tied else 1
        training(
            replay,
            layers,
            run.head,
            int(run.embedding.size_bytes),
            tables,
            trained(spec, job),
            (job.optimizer.name, job.optimizer.implementation),
        )
    else:
        prefill = timeline.Inference(spec, job, compute_capability, detail=True)
        layers = prefill.layers
        whole = int(kv_cache.kv_cache(spec, job, prefill.prompt).size_bytes) if job.kv_cache else 0
        inference(
            replay,
            layers,
            prefill.head,
            int(prefill.embedding.size_bytes),
            [whole // len(layers)] * len(layers),
        )
    return replay
