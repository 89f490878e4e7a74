"""From a Job back to its words: the inverse of ``make_job``, so that a job found by search can be asked for."""

from __future__ import annotations

from typing import Any

from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Job
from loadmaster.jobs.make import PRECISIONS, make_job


def words(job: Job) -> dict[str, Any] | None:
    """Keyword arguments of ``make_job`` that make this job, without those that are its defaults.

    None when no words make it (a precision or layout that only code can ask for).
    """
    precision = next((name for name, known in PRECISIONS.items() if known == job.precision), None)
    said: dict[str, Any] = {
        "task": job.task,
        "method": job.method,
        "precision": precision,
        "batch": job.micro_batch,
        "seq": job.seq_len,
        "grad_accumulation": job.grad_accumulation,
        "optimizer": job.optimizer.name,
        "optimizer_implementation": job.optimizer.implementation,
        "checkpointing": job.checkpointing,
        "attention": job.attention,
        "loss": job.loss,
        "rank": job.lora.rank if job.lora else None,
        "targets": ",".join(job.lora.targets) if job.lora else None,
        "new_tokens": job.new_tokens,
        "prefill_chunk": job.prefill_chunk,
        "logits": job.logits,
        "kv_dtype": job.kv_dtype,
        "workers": job.loader.workers,
        "prefetch": job.loader.prefetch,
        "pin_memory": job.loader.pin_memory,
    }
    if make_job(**said) != job:
        return None
    usual = _usual(job)
    return {field: value for field, value in said.items() if field == "seq" or value != usual[field]}


def _usual(job: Job) -> dict[str, Any]:
    """What each word is when it isn't said."""
    return {
        "task": "finetune",
        "method": "full",
        "precision": "amp" if job.training and job.method == "full" else "bf16",
        "batch": 1,
        "seq": None,
        "grad_accumulation": 1,
        "optimizer": "adamw",
        "optimizer_implementation": optimizers.find(job.optimizer.name).IMPLEMENTATIONS[0],
        "checkpointing": "none",
        "attention": "sdpa",
        "loss": "hf",
        "rank": 16 if job.lora else None,
        "targets": "all-linear" if job.lora else None,
        "new_tokens": 0,
        "prefill_chunk": None,
        "logits": "last",
        "kv_dtype": None,
        "workers": 0,
        "prefetch": 2,
        "pin_memory": False,
    }
