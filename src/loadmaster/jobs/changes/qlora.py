"""QLoRA (arXiv:2305.14314): the frozen base packed in 4 bits; dequantising costs time in every layer."""

from __future__ import annotations

from loadmaster.jobs.job import Job, Lora, Precision, Quantization
from loadmaster.records import replace

NAME = "qlora"
NUMERICS = "different"
SPEED = "slower than LoRA: weights are unpacked in every pass"
PENALTY = 9
REPEATS = False


def applies(job: Job) -> bool:
    """Fine-tuning without a packed base."""
    return job.task == "finetune" and job.method in ("full", "lora") and job.quantization is None


def apply(job: Job) -> Job:
    """The job with a 4-bit base and adapters."""
    return replace(
        job,
        method="qlora",
        lora=job.lora or Lora(),
        quantization=Quantization(),
        precision=Precision(weights="bfloat16"),
    )


def text(job: Job) -> str:
    """What to do."""
    return "QLoRA: base in 4 bits (nf4, double quantisation)"
