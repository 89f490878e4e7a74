"""Whether a model, a job and a card go together: what no such card or library can run is asked back, what is slow is noted."""

from __future__ import annotations

from loadmaster.errors import BadValueError
from loadmaster.hardware import Device
from loadmaster.jobs.job import Job
from loadmaster.models.parameters import generates
from loadmaster.models.spec import ModelSpec

NEEDS = {"flash2": 8.0, "flash3": 9.0}
"""CUDA compute capability that attention packages are built for (flash-attention README: Ampere, Ada or Hopper; its hopper
folder: H100 and H800)."""
BF16_SINCE = 8.0
"""Tensor cores multiply bfloat16 since Ampere (CUDA C programming guide, table of arithmetic by compute capability)."""


def check(spec: ModelSpec, job: Job) -> None:
    """Raises BadValueError for a server and a job or model that it doesn't serve."""
    engine = job.facts.engine
    if engine is None:
        return
    if job.training:
        raise BadValueError(
            "framework", engine, f"a library that trains, or task serve: {engine} only serves"
        )
    if not generates(spec):
        raise BadValueError("framework", engine, f"a model that generates text, which {spec.name} doesn't")


def notes(job: Job, device: Device | None) -> tuple[str, ...]:
    """What a card makes slow; raises BadValueError for attention that it can't run."""
    if device is None:
        return ()
    capability = device.gpu.compute_capability
    cuda = float(capability) if capability is not None and capability[:1].isdigit() else None
    needed = NEEDS.get(job.attention)
    if needed is not None and device.gpu.vendor != "any" and (cuda is None or cuda < needed):
        has = "has none" if cuda is None else f"has {capability}"
        where = f"{device.gpu.name} {has}"
        raise BadValueError(
            "attention",
            job.attention,
            f"sdpa: {job.attention} needs CUDA compute capability {needed}, {where}",
        )
    if cuda is not None and cuda < BF16_SINCE and job.compute_dtype == "bfloat16":
        return (
            f"{device.gpu.name} has no bfloat16 units: it runs, slowly; fp16 is what this card is made for",
        )
    return ()
