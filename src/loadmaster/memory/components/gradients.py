"""Gradients: one tensor for each trained parameter, in the parameter's own format."""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.jobs.job import Job
from loadmaster.memory.inventory import gradient_bytes, trained
from loadmaster.memory.parts import Part
from loadmaster.models.spec import ModelSpec

BUFFER = (
    "; Megatron-LM distributed/param_and_grad_buffer.py: main_grad, one float32 buffer that is always there"
)


def gradients(spec: ModelSpec, job: Job) -> Part:
    """All gradients, as they stand between backward and ``zero_grad(set_to_none=True)``."""
    held = trained(spec, job)
    total: Size = 0
    for h in held:
        total = total + gradient_bytes(h, job.precision.gradients)

    def formula() -> str:
        values = sum(int(h.elements) * h.count for h in held)
        formats = job.precision.gradients or ", ".join(sorted({h.dtype for h in held}))
        return f"{values:,} trained values × bytes of their format ({formats})"

    return Part(
        "gradients",
        total,
        formula,
        "torch/csrc/autograd/functions/accumulate_grad.h: .grad has its parameter's type"
        + (BUFFER if job.precision.gradients else ""),
    )
