"""Which parts of a model a job leaves as they are (``--freeze``), and where in it nothing asks for a gradient.

A layer keeps activations only if something at or before it is trained: autograd records no operator whose inputs all need
no gradient (torch/csrc/autograd/variable.h, requires_grad).
"""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.jobs.job import Job
from loadmaster.models.parameters import Tensor
from loadmaster.models.spec import ModelSpec, Tower

TABLES = ("embedding", "position")


class Place(NamedTuple):
    """What sets a layer apart from others of its block: its input needs no gradient, it is checkpointed, it is frozen."""

    first: bool = False
    checkpointed: bool = False
    frozen: bool = False


def place(spec: ModelSpec, job: Job, tower: Tower, position: int) -> Place:
    """Where a layer stands in a training step."""
    if job.lora is not None:
        # enable_input_require_grads goes with checkpointing (transformers' Trainer, PEFT).
        return Place(position == 0 and job.checkpointing == "none", job.checkpoints(position))
    frozen = "towers" in job.frozen if tower is not spec.decoder else position < job.frozen_layers
    first = unreached(spec, job, tower, position)
    return Place(first, job.checkpoints(position), frozen)


def unreached(spec: ModelSpec, job: Job, tower: Tower, position: int) -> bool:
    """Whether nothing before this layer (or, one past the last, before the head) is trained; with checkpointing the
    embedding's output asks for a gradient all the same (transformers' gradient_checkpointing_enable)."""
    if job.lora is not None or not job.frozen or job.checkpointing != "none":
        return False
    if tower is not spec.decoder:
        return "towers" in job.frozen
    alone = len(spec.towers) == 1 or "towers" in job.frozen
    tables = "embeddings" in job.frozen or (frozen_head(spec, job) and len(spec.decoder.embeddings) == 1)
    return alone and tables and position <= job.frozen_layers


def frozen_copies(spec: ModelSpec, job: Job, tensor: Tensor) -> int:
    """How many of a tensor's copies are frozen."""
    tower = spec.decoder
    if tensor.tower is not None and tensor.tower != tower.name:
        return tensor.count if "towers" in job.frozen else 0
    if tensor.layer is None:
        named = {"head": "head", **dict.fromkeys(TABLES, "embeddings")}.get(tensor.role)
        shared = tensor.role == "embedding" and tensor.name in _output_tables(spec) and "head" in job.frozen
        return tensor.count if shared or named in job.frozen else 0
    kinds = [tower.blocks[index].name == tensor.layer for index in tower.layout]
    return tensor.count * sum(kinds[: job.frozen_layers]) // max(sum(kinds), 1)


def frozen_head(spec: ModelSpec, job: Job) -> bool:
    """Whether the output projection is frozen: by itself, or as the token table that it is."""
    tied = spec.head is not None and spec.head.tied
    return "head" in job.frozen or (tied and "embeddings" in job.frozen)


def _output_tables(spec: ModelSpec) -> set[str]:
    """The token table that is the output projection too: one parameter, so that freezing either freezes both."""
    if spec.head is None or not spec.head.tied:
        return set()
    return {f"{table.name}.weight" for table in spec.decoder.embeddings if table.role == "token"}
