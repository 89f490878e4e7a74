"""Options that were said and change nothing for this model and job: they must not pass in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadmaster.jobs.job import Job
from loadmaster.jobs.make import Words
from loadmaster.memory.inventory import trained
from loadmaster.models.parameters import generates
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

TRAINING = (
    "grad_accumulation", "eval_batch", "checkpointing", "loss", "loss_chunks", "optimizer", "optimizer_implementation",
    "optimizer_rank", "optimizer_in_backward", "offload", "hold_outputs",
)  # fmt: skip
"""Words about gradients, optimizer and loss: nothing of these is there without a backward pass."""
GENERATION = ("new_tokens", "prefill_chunk", "logits", "kv_dtype")
SERVER = ("memory_utilization", "max_sequences")


def unused(spec: ModelSpec, job: Job, said: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of ``said`` that aren't what holds anyway and that nothing of this model and job asks for."""
    usual = Words()
    return tuple(
        field for field in _idle(spec, job) if said.get(field, None) not in (None, getattr(usual, field))
    )


def note(fields: tuple[str, ...]) -> str:
    """``no effect here: --optimizer, --checkpointing``."""
    return f"no effect here: {', '.join('--' + field.replace('_', '-') for field in fields)}"


def _idle(spec: ModelSpec, job: Job) -> Iterator[str]:
    if not job.training:
        yield from TRAINING
    elif spec.head is None:
        yield from ("loss", "loss_chunks")
    if job.training or not generates(spec):
        yield from GENERATION
    if job.facts.engine != "vllm":
        yield from SERVER
    if job.facts.attention is not None:
        yield "attention"
    others = [tower for tower in spec.towers if tower is not spec.decoder]
    if spec.decoder.modality != "text" or all(tower.tokens is None for tower in others):
        yield "images"
    if all(tower.tokens is not None for tower in others):
        yield "source_seq"
    if not job.loader.workers:
        yield "prefetch"
    if job.training and not any(
        job.checkpoints(place) for tower in spec.towers for place in range(len(tower.layout))
    ):
        yield "checkpointing"
    if job.frozen and trained(spec, job) == trained(spec, replace(job, frozen=())):
        yield "freeze"
