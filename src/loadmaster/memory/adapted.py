"""Which modules and parameters LoRA adapts in a model: a job's targets as the library reads them."""

from __future__ import annotations

from math import prod

from loadmaster.dtypes import itemsize
from loadmaster.jobs.frameworks import _peft
from loadmaster.jobs.job import Job, Lora
from loadmaster.models.parameters import Tensor, tensors
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace
from loadmaster.units import format_bytes


def as_adapted(spec: ModelSpec, job: Job) -> Job:
    """The job with its targets as PEFT converts them for this model; the same job where it doesn't, or has."""
    if job.lora is None or job.lora.parameters or not job.facts.adapts_experts:
        return job
    targets, parameters, _ = _converted(spec, job.lora)
    return replace(job, lora=replace(job.lora, targets=targets, parameters=parameters)) if parameters else job


def _converted(spec: ModelSpec, lora: Lora) -> tuple[tuple[str, ...], _peft.Parameters, tuple[str, ...]]:
    linear = [t.name.removesuffix(".weight") for t in tensors(spec) if t.linear and t.layer is not None]
    return _peft.converted(spec.model_type, lora.targets, (name.rpartition(".")[2] for name in linear))


def matches(targets: tuple[str, ...], name: str) -> bool:
    """PEFT's rule: all-linear, or a module whose name is a target or ends in one (tuners_utils.check_target_module_exists)."""
    return any(t in ("all-linear", name) or name.endswith(f".{t}") for t in targets)


def ranks(lora: Lora, name: str) -> int:
    """How many of the job's ranks the adapter of a parameter has; 0: it has none."""
    return next((each for part, each in lora.parameters if matches((part,), name)), 0)


def sides(lora: Lora, tensor: Tensor) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The adapter's tensors of one parameter tensor with their shapes: A and B, and DoRA's magnitudes. Of a stack of experts A
    and B hold all of them (peft/tuners/lora/layer.py ParamWrapper.update_layer)."""
    stack = tensor.shape[0] if len(tensor.shape) == 3 else 1
    outputs, inputs = tensor.shape[-2:]
    if lora.parameters and not tensor.linear:
        rank = lora.rank * ranks(lora, tensor.name) * stack
        return ("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))
    found: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("lora_A", (lora.rank, inputs)),
        ("lora_B", (outputs, lora.rank)),
    )
    return (*found, ("lora_magnitude_vector", (outputs,))) if lora.dora else found


def reaches(lora: Lora, tensor: Tensor) -> bool:
    """Whether a tensor inside the layers has an adapter."""
    if tensor.layer is None:
        return False
    if tensor.linear:
        return matches(lora.targets, tensor.name.removesuffix(".weight"))
    return len(tensor.shape) > 1 and ranks(lora, tensor.name) > 0


def warnings(spec: ModelSpec, job: Job, dtype: str) -> list[str]:
    """Where PEFT adapts stacked experts: what that takes, and what it refuses. ``dtype``: the experts' format."""
    lora = job.lora
    if lora is None:
        return []
    routers = [t for t in tensors(spec) if t.role == "router" and t.derived and reaches(lora, t)]
    if routers and job.facts.stacked_experts:
        # peft/tuners/lora/layer.py Linear.forward: result.dtype.
        return [
            "LoRA wraps the router, whose output is a tuple, and stops there: name the targets, such as q_proj,v_proj"
        ]
    if not job.facts.adapts_experts:
        return []
    _, parameters, halves = _converted(spec, lora)
    if not parameters:
        return []
    found = []
    if halves:
        found.append(
            f"PEFT refuses {', '.join(halves)} alone: gate and up projection of these experts are one tensor"
        )
    if lora.dropout or lora.dora:
        what = "DoRA" if lora.dora else "dropout"
        found.append(
            f"PEFT refuses {what} on stacked experts: name other targets, such as those of the attention"
        )
    adapted = replace(lora, parameters=parameters)
    stacks = [t for t in tensors(spec) if len(t.shape) == 3 and reaches(adapted, t)]
    if stacks:
        layers = max(t.count for t in stacks)
        size = sum(itemsize(dtype) * prod(t.shape) * t.count for t in stacks)
        kept = "of a layer at a time" if job.checkpointing == "full" else "kept for backward"
        total = size // layers if job.checkpointing == "full" else size
        found.append(
            f"LoRA reaches this model's stacked experts, and each forward merges adapters into copies of their weights: "
            f"{format_bytes(total)} {kept}; targets in the attention alone don't"
        )
    return found
