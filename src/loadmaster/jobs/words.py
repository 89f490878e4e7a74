"""From a Job back to its words: the inverse of ``make_job``, so that a job found by search can be asked for."""

from __future__ import annotations

from typing import Any

from loadmaster.jobs import optimizers, quantizations
from loadmaster.jobs.job import Job
from loadmaster.jobs.make import PRECISIONS, Words, make_job, recipe_implementation


def words(job: Job) -> dict[str, Any] | None:
    """Keyword arguments of ``make_job`` that make this job, without those that are its defaults.

    None when no words make it (a precision or layout that only code can ask for).
    """
    said: dict[str, Any] = {
        "task": job.task,
        "method": job.method,
        "precision": next((name for name, known in PRECISIONS.items() if known == job.precision), None),
        "batch": job.micro_batch,
        "seq": job.seq_len,
        "grad_accumulation": job.grad_accumulation,
        "optimizer": job.optimizer.name,
        "optimizer_implementation": job.optimizer.implementation,
        "optimizer_rank": job.optimizer.rank,
        "optimizer_in_backward": job.optimizer_in_backward,
        "checkpointing": job.checkpointing,
        "attention": job.attention,
        "eval_batch": job.eval_batch,
        "loss": job.loss,
        "loss_chunks": job.loss_chunks,
        "rank": job.lora.rank if job.lora else None,
        "lora_dropout": job.lora.dropout if job.lora else 0.0,
        "dora": job.lora.dora if job.lora else False,
        "targets": ",".join(job.lora.targets) if job.lora else None,
        "quantization": quantizations.spelled(job.quantization) if job.quantization else None,
        "freeze": ",".join(job.frozen) or None,
        "offload": ",".join(job.offload) or None,
        "compile": job.compile,
        "framework": job.framework,
        "hold_outputs": job.outputs_held,
        "images": job.images,
        "source_seq": job.source_len,
        "new_tokens": job.new_tokens,
        "prefill_chunk": job.prefill_chunk,
        "logits": job.logits,
        "kv_dtype": job.kv_dtype,
        "memory_utilization": job.memory_utilization,
        "max_sequences": job.max_sequences,
        "workers": job.loader.workers,
        "prefetch": job.loader.prefetch,
        "pin_memory": job.loader.pin_memory,
        "dataset": job.loader.dataset_bytes or None,
    }
    if make_job(**said) != job:
        return None
    usual = _usual(job)
    return {field: value for field, value in said.items() if field == "seq" or value != usual[field]}


def _usual(job: Job) -> dict[str, Any]:
    """What each word is when it isn't said."""
    plain = Words()
    usual = {field: getattr(plain, field) for field in Words.__struct_fields__}
    implementations = optimizers.find(job.optimizer.name).IMPLEMENTATIONS
    master = job.precision.master is not None
    usual |= {
        "method": "full",
        "precision": "amp" if job.training and job.method == "full" else "bf16",
        "optimizer_implementation": recipe_implementation(job.facts, implementations, master=master),
        "rank": 16 if job.lora else None,
        "targets": "all-linear" if job.lora else None,
        "quantization": "nf4" if job.method == "qlora" else None,
    }
    return usual
