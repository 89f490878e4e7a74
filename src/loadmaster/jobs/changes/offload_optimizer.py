"""Optimizer states in host memory, the step on the CPU (ZeRO-Offload, arXiv:2101.06840 §5; torchao CPUOffloadOptimizer): every
step moves the gradients to the host and the weights back over PCIe."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.records import replace

NAME = "offload_optimizer"
NUMERICS = "close"
SPEED = "slower steps: gradients and weights cross PCIe, the CPU updates"
PENALTY = 7
REPEATS = False
TO_HOST = True


def applies(job: Job) -> bool:
    """Training whose optimizer has states on the card and steps once for all."""
    return job.training and "optimizer" not in job.offload and not job.optimizer_in_backward


def apply(job: Job) -> Job:
    """The job with its optimizer in host memory."""
    return replace(job, offload=("optimizer", *job.offload))


def text(job: Job) -> str:
    """What to do."""
    return "optimizer states offloaded to RAM"
