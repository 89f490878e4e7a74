"""Optimizer states, master weights, and what a step allocates besides."""

from __future__ import annotations

from loadmaster.arrays import Size, rounded
from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Job
from loadmaster.jobs.optimizers._step import HALVES, Trained, copies
from loadmaster.memory.inventory import Held, trained
from loadmaster.memory.parts import Part, commas
from loadmaster.models.spec import ModelSpec

MASTER_SOURCE = (
    "float32 copies that the optimizer works on: Megatron-LM core/optimizer/optimizer.py "
    "Float16OptimizerWithFloat16Params (main_param = param.float()), apex and DeepSpeed FP16_Optimizer the same"
)


def states(spec: ModelSpec, job: Job) -> Part:
    """What the optimizer keeps from its first step on, in memory that PyTorch counts."""
    module = optimizers.find(job.optimizer.name)
    held = trained(spec, job)
    total: Size = 0
    for h in held:
        for size in state_sizes(job, h):
            total = total + rounded(size) * h.count

    def formula() -> str:
        values = sum(int(h.elements) * h.count for h in held)
        return (
            f"{job.optimizer.name}: {int(total) / max(values, 1):.3g} B for each of {values:,} trained values"
        )

    return Part("optimizer states", total, formula, module.SOURCE)


def paged(spec: ModelSpec, job: Job) -> Part | None:
    """States in managed memory: missing from PyTorch's counters, on the card while it has room and in RAM else."""
    module = optimizers.find(job.optimizer.name)
    if not hasattr(module, "paged") or not job.training:
        return None
    total: Size = 0
    for h in trained(spec, job):
        wide = exempt(job, h)
        one = module.paged_wide(tensor_of(job, h)) if wide else module.paged(tensor_of(job, h), job.optimizer)
        total = total + rounded(one, PAGE) * h.count
    words = "managed memory: on the card while it has room, in RAM else; PyTorch counts none of it"
    return Part("paged states", total, lambda: f"{commas(total)} B of {words}", module.SOURCE)


PAGE = 4096
"""Managed memory is handed out in the host's pages at least."""


def tensor_of(job: Job, held: Held) -> Trained:
    """A trained tensor as the optimizer sees it."""
    return Trained(held.elements, worked_in(job, held), held.sides, held.count, held.hidden)


def worked_in(job: Job, held: Held) -> str:
    """The format the optimizer updates: that of the master copy where there is one."""
    return job.precision.master if job.precision.master and held.dtype in HALVES else held.dtype


def exempt(job: Job, held: Held) -> bool:
    """Whether a library keeps a token table's states in 32 bits (transformers' Trainer, with bitsandbytes)."""
    module = optimizers.find(job.optimizer.name)
    return job.facts.wide_embedding_states and held.role == "embedding" and hasattr(module, "states_wide")


def state_sizes(job: Job, held: Held) -> tuple[Size, ...]:
    """Bytes of each state tensor of one copy of a tensor."""
    module = optimizers.find(job.optimizer.name)
    tensor = tensor_of(job, held)
    found: tuple[Size, ...] = (
        module.states_wide(tensor) if exempt(job, held) else module.states(tensor, job.optimizer)
    )
    return found


def master(spec: ModelSpec, job: Job) -> Part | None:
    """The optimizer's own copies of 16-bit weights."""
    if job.precision.master is None:
        return None
    total: Size = 0
    for h in trained(spec, job):
        total = total + rounded(master_bytes(job, h)) * h.count
    words = f"{job.precision.master} copies of the trained 16-bit weights"
    return Part("master weights", total, lambda: f"{words} = {commas(total)} B", MASTER_SOURCE)


def master_bytes(job: Job, held: Held) -> Size:
    """The optimizer's copy of one tensor: none where the weight itself has the master format."""
    return tensor_of(job, held).size_bytes if worked_in(job, held) != held.dtype else 0


def step_bytes(job: Job, held: list[Held]) -> Size:
    """The highest temporary of ``optimizer.step()``; with master weights, gradients are first copied to their format."""
    tensors = [tensor_of(job, h) for h in held]
    total: Size = optimizers.find(job.optimizer.name).step_bytes(tensors, job.optimizer)
    if job.precision.master is not None and job.precision.gradients is None:
        total = total + copies(tensor_of(job, h) for h in held if h.dtype in HALVES)
    return total


def step_temporaries(spec: ModelSpec, job: Job) -> Part:
    """``step_bytes`` as a part of the ledger."""
    total = step_bytes(job, trained(spec, job))
    words = "" if job.precision.master is None else ", and gradients in the master format"

    def formula() -> str:
        return f"{job.optimizer.implementation} {job.optimizer.name}{words}: {int(total):,} B"

    return Part("temporaries", total, formula, optimizers.find(job.optimizer.name).SOURCE)
