"""Evaluation between training steps: the loss of a batch of its own without gradients, beside the optimizer's states.

Mirrors transformers' Trainer.prediction_step with ``prediction_loss_only``: no gradients are left (zero_grad sets them to None),
the model's use_cache is on, so that keys and values of all layers are collected, and the loss takes the logits of all tokens.
"""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.jobs.job import Job
from loadmaster.memory import passes, stacks
from loadmaster.memory.components import activations, kv_cache
from loadmaster.memory.parts import Moment, Part, cached_casts, work
from loadmaster.models.parameters import generates
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

PHASE = "evaluate"


def evaluation(
    spec: ModelSpec, job: Job, lasting: list[Part], capability: str | None, *, detail: bool
) -> list[Moment]:
    """The moments of an evaluation batch of ``job.eval_batch`` sequences; ``lasting``: weights, optimizer states and
    workspaces that are there all the time. Empty where the job says nothing of evaluation."""
    if job.eval_batch is None:
        return []
    looking = replace(job, micro_batch=job.eval_batch, checkpointing="none", kv_cache=generates(spec))
    if looking.lora is not None:
        looking = replace(looking, lora=replace(looking.lora, dropout=0.0))
    width = stacks.rotary(spec.decoder)
    common = [*lasting, activations.inputs(spec, looking, width, stacks.residual_dtype(looking))]
    if looking.kv_cache:
        common.append(kv_cache.kv_cache(spec, looking, job.seq_len))
    found = []
    casts: Size = 0
    for stack in stacks.inference(
        spec, looking, job.seq_len, job.seq_len, detail=detail, capability=capability
    ):
        for segment in stack.segments:
            held = [] if segment.held is None else [segment.held]
            now = work(segment.cost.forward, segment.cost.forward_census)
            others = cached_casts(casts + segment.cost.casts * (segment.count - 1))
            found.append(Moment(PHASE, "last layer", [*common, *held, others, now]))
            casts = casts + segment.cost.casts * segment.count
    if spec.head is not None:
        cost = passes.evaluation_head(spec, looking, detail=detail)
        now = work(cost.forward, cost.forward_census)
        found.append(Moment(PHASE, "logits and loss", [*common, cached_casts(casts), now]))
    return found
