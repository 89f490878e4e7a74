"""LoRA instead of full fine-tuning (arXiv:2106.09685): the base is frozen in bfloat16, adapters of rank 16 are trained."""

from __future__ import annotations

from loadmaster.jobs.job import Job, Lora, Precision
from loadmaster.records import replace

NAME = "lora"
NUMERICS = "different"
SPEED = "faster steps"
PENALTY = 8
REPEATS = False


def applies(job: Job) -> bool:
    """Full fine-tuning (not training from scratch)."""
    return job.task == "finetune" and job.method == "full"


def apply(job: Job) -> Job:
    """The job with adapters on all linear layers."""
    return replace(job, method="lora", lora=Lora(), precision=Precision(weights="bfloat16"))


def text(job: Job) -> str:
    """What to do."""
    return "LoRA r=16 on all linear layers, base in bf16"
