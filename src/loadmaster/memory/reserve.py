"""Reserved bytes of a job: two steps, or a prefill, replayed through the allocator's rules."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory import timeline
from loadmaster.memory.inventory import adapters, as_run, gradient_bytes, parameters, trained
from loadmaster.memory.replay import Replay, inference, lots, training
from loadmaster.memory.serving import Served
from loadmaster.memory.training import Training
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval, replace
from loadmaster.units import MIB


def reserved(spec: ModelSpec, job: Job, allocated: Interval, compute_capability: str | None) -> Interval:
    """Peak of max_memory_reserved. Low: expandable segments, which leave only 2 MiB pages unused; likely: the replay with
    default segments; high: as much unused again, for lengths that change from batch to batch."""
    if job.facts.engine is not None and not job.training:
        return allocated  # a server makes its pools at once
    unused = _unused(spec, job, compute_capability)
    low = -(-allocated.low // (2 * MIB)) * 2 * MIB
    likely = allocated.likely + unused
    return Interval(low=min(low, likely), likely=likely, high=max(allocated.high + 2 * unused, likely))


def _unused(spec: ModelSpec, job: Job, compute_capability: str | None) -> int:
    """Reserved less allocated bytes of the replay; of very deep models, of the first layers, in proportion."""
    layers = len(spec.decoder.layout)
    if layers > MOST_LAYERS:
        tower = replace(spec.decoder, layout=spec.decoder.layout[:MOST_LAYERS])
        spec = replace(spec, towers=tuple(tower if t is spec.decoder else t for t in spec.towers))
    allocator = replayed(spec, job, compute_capability).allocator
    unused = max(0, allocator.peak_reserved_bytes - allocator.peak_allocated_bytes)
    return unused * max(layers, MOST_LAYERS) // MOST_LAYERS if layers > MOST_LAYERS else unused


MOST_LAYERS = 160
"""Layers that are replayed one by one: more than any released model has (Llama-3.1-405B: 126)."""


def replayed(spec: ModelSpec, job: Job, compute_capability: str | None) -> Replay:
    """The job's blocks on an allocator that gets what it asks for."""
    spec = as_run(spec, job)
    replay = Replay()
    for held in [*parameters(spec, job), *adapters(spec, job)]:
        replay.keep(lots(int(held.size_bytes) // held.count, held.count))
    run = timeline.detailed(spec, job, compute_capability)
    if isinstance(run, Served):
        return replay
    layers = [cost for stack in run.stacks for cost in stack.layers]
    embedding = int(run.stacks[0].embedding.size_bytes) if run.stacks else 0
    if isinstance(run, Training):
        tables = [int(gradient_bytes(h)) for h in trained(spec, job) if h.role in ("embedding", "position")]
        tables *= 2 if spec.head is not None and spec.head.tied and run.head.projection_viewed else 1
        training(replay, layers, run.head, embedding, tables, trained(spec, job), job)
    else:
        whole = int(run.cache.size_bytes) if job.kv_cache else 0
        cache = [whole // len(layers)] * len(layers) if layers else []
        inference(replay, layers, run.head, embedding, cache)
    return replay
