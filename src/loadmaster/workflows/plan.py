"""``loadmaster plan``: from a model, a job and a card as people name them to a Plan."""

from __future__ import annotations

import os
from typing import Any

from loadmaster.errors import BadValueError, UsageError
from loadmaster.hardware import Device, Host, Machine, cpu_device, custom_device, find_gpu, usable
from loadmaster.jobs import quantizations
from loadmaster.jobs.job import Job, Precision
from loadmaster.jobs.make import make_job
from loadmaster.memory.inventory import adapters
from loadmaster.models import read_model
from loadmaster.models.parameters import tensors
from loadmaster.models.spec import ModelSpec
from loadmaster.plan import Plan, make_plan
from loadmaster.records import replace
from loadmaster.workflows import suits
from loadmaster.workflows.unused import note, unused

AUTO = "auto"
DEFAULT_SEQ = 2048
PICTURE_SEQ = 64 * 64 + 512
"""Patches of 1024 × 1024 pixels (eightfold autoencoder, patches of 2 × 2) and tokens of text: what diffusers' FluxPipeline takes
where nothing is said."""
_TEXTS = {
    "task", "method", "precision", "optimizer", "optimizer_implementation", "checkpointing", "attention", "loss",
    "logits", "kv_dtype",
}  # fmt: skip


def plan(
    model: str | os.PathLike[str] | ModelSpec | None = None,
    *,
    gpu: str | None = None,
    vram: str | int | None = None,
    params: str | None = None,
    task: str = "finetune",
    method: str | None = None,
    precision: str | Precision | None = None,
    batch: int = 1,
    seq: int | None = None,
    machine: Machine | None = None,
    **how: Any,
) -> Plan:
    """Plan a job on a model and a card: the ledger of its memory, a verdict, and what would make it fit.

    ``model`` is a catalogue name, a Hugging Face id, a folder, a config.json, a .safetensors or .gguf file, or a
    ModelSpec; ``params="7B"`` instead of it takes a network of that size. ``gpu`` is a card by any spelling
    (``rtx4090``) or ``auto``, this machine, which is the default; ``vram="24GiB"`` is a card known by its size alone.
    ``seq`` is 2048, or what the model reaches if that is less. ``how`` holds the other words of ``jobs.make.make_job``:
    grad_accumulation, optimizer, optimizer_implementation, checkpointing, attention, loss, rank, targets, new_tokens,
    prefill_chunk, logits, kv_dtype, workers, prefetch, pin_memory. ``machine`` stands in for the one detected.

    Raises a LoadmasterError, one sentence, for whatever can't be planned.
    """
    if gpu is not None and vram is not None:
        raise UsageError("a card has one size: give gpu or vram, not both")
    if machine is not None and not isinstance(machine, Machine):
        raise BadValueError("machine", machine, "a Machine, such as loadmaster.sensors.detect gives")
    spec, source = _model(model, params)
    usual: tuple[str, ...] = ()
    if seq is None:
        seq, usual = _usual_seq(spec)
    if "engine" in how:
        how["framework"] = how.pop("engine")
    words = said({"task": task, "method": method, "precision": precision, "batch": batch, "seq": seq, **how})
    notes = usual + _as_stored(spec, words)
    job = make_job(**words)
    if idle := unused(spec, job, words):
        notes += (note(idle),)
        job = make_job(**{field: value for field, value in words.items() if field not in idle})
    _check_targets(spec, job)
    suits.check(spec, job)
    device, host, where, found = device_of(gpu, vram, machine)
    notes += (*found, *suits.notes(job, device))
    if spec.max_positions is not None and job.seq_len > spec.max_positions:
        notes += (
            f"{job.seq_len:,} tokens are more than the {spec.max_positions:,} positions of {spec.name}",
        )
    made = make_plan(spec, job, device, host)
    return replace(made, notes=made.notes + notes, asked=(*source, *where))


def _usual_seq(spec: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """The length where none is said, and what to note about it."""
    if spec.decoder.tokens is not None:
        return spec.decoder.tokens, ()
    if spec.decoder.modality == "image_latent":
        words = "1024 × 1024 pixels and 512 tokens of text; --seq takes another number of patches and tokens"
        return PICTURE_SEQ, (words,)
    return min(DEFAULT_SEQ, spec.max_positions or DEFAULT_SEQ), ()


def device_of(
    gpu: str | None, vram: str | int | None, machine: Machine | None
) -> tuple[Device | None, Host | None, tuple[str, str], tuple[str, ...]]:
    """The card, the host if the job would run here, the words that name the card, and what to note about the choice."""
    if vram is not None:
        return custom_device(vram), None, ("--vram", str(vram)), ()
    if gpu is None or _is_auto(gpu):
        machine = machine or _detect()
        device, found = _best(machine)
        return device, machine.host, ("--gpu", AUTO), found
    one, found = _one_of(find_gpu(gpu))
    return one, None, ("--gpu", gpu), found


def said(words: dict[str, Any]) -> dict[str, Any]:
    """The words that were said; None means not said. Raises BadValueError for one that is neither text nor number where
    it should be: whoever calls from code may hand over anything."""
    said = {field: value for field, value in words.items() if value is not None}
    for field in _TEXTS & said.keys():
        if not isinstance(said[field], str) and not (
            field == "precision" and isinstance(said[field], Precision)
        ):
            raise BadValueError(field, said[field], "a name")
    targets = said.get("targets", "")
    if not isinstance(targets, str | tuple | list) or not all(isinstance(name, str) for name in targets):
        raise BadValueError("targets", targets, "names such as q_proj,v_proj")
    if not isinstance(said.get("pin_memory", False), bool):
        raise BadValueError("pin_memory", said["pin_memory"], "True or False")
    return said


def _as_stored(spec: ModelSpec, words: dict[str, Any]) -> tuple[str, ...]:
    """Inference takes a packed checkpoint as it is, unless the words say otherwise."""
    if words.get("task") not in ("infer", "serve") or "quantization" in words or spec.quantization is None:
        return ()
    stored = quantizations.of_checkpoint(spec.quantization)
    if stored is None:
        return (f"the checkpoint is packed as {spec.quantization}, which isn't known here: taken as plain",)
    words["quantization"] = stored
    return (
        f"the checkpoint is packed as {spec.quantization} and is taken as it is (--quantization {stored})",
    )


def _is_auto(gpu: str) -> bool:
    if not isinstance(gpu, str):
        raise BadValueError("GPU", gpu, "a name such as RTX 4090, A100-80GB or H100:8, or auto")
    return gpu.strip().lower() == AUTO


def _model(model: object, params: str | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model, and the words by which it was named."""
    if isinstance(model, ModelSpec):
        return model, (model.name,)
    if model is None and params is None:
        raise UsageError("no model named", hint="a model, a file or folder of one, or --params 7B")
    if model is not None and not isinstance(model, str | os.PathLike):
        raise BadValueError("model", model, "a name, a path or a ModelSpec")
    name = None if model is None else os.fspath(model)
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    words: tuple[str, ...] = () if name is None else (name,)
    if params is not None:
        words += ("--params", str(params))
        return read_model(name, params=str(params)), words
    return read_model(name), words


def _check_targets(spec: ModelSpec, job: Job) -> None:
    """As PEFT does: adapters that go nowhere are a mistake."""
    if job.lora is None or adapters(spec, job):
        return
    linear = {
        tensor.name.removesuffix(".weight").rpartition(".")[2] for tensor in tensors(spec) if tensor.linear
    }
    raise BadValueError(
        "targets", ",".join(job.lora.targets), f"modules that {spec.name} has: {', '.join(sorted(linear))}"
    )


def _detect() -> Machine:
    from loadmaster.sensors import detect

    return detect()


def _best(machine: Machine) -> tuple[Device | None, tuple[str, ...]]:
    """The card of this machine with the most memory to use now; its CPU where there is no card."""
    if not machine.gpus:
        reasons = "; ".join(f"{absent.vendor}: {absent.reason}" for absent in machine.absent)
        return cpu_device(machine.host), (f"no GPU seen here{f' ({reasons})' if reasons else ''}",)
    device = max(machine.gpus, key=lambda gpu: usable(gpu, machine.host).usable_bytes.likely)
    if len(machine.gpus) == 1:
        return device, ()
    number = f"GPU {device.index}, " if device.index is not None else ""
    many = f"this machine has {len(machine.gpus)} GPUs"
    return device, (f"{many}; the plan is for {number}{device.name}, which has the most free memory",)


def _one_of(device: Device) -> tuple[Device, tuple[str, ...]]:
    """One card of several: more are not modelled yet, and replicas don't add up anyway."""
    if device.count == 1:
        return device, ()
    note = (
        f"{device.count} cards are named and the plan is for one: under plain data parallelism each holds the whole "
        "job, so their memory doesn't add up (sharding isn't planned yet)"
    )
    return replace(device, count=1), (note,)
