"""Which parameters are trained: LoRA and DoRA through PEFT's own wrapper, frozen parts of full training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from loadmaster.dryrun.programs.building import quiet
from loadmaster.errors import BadValueError, MissingExtraError, UsageError
from loadmaster.jobs.job import Job


def wrap(model: Any, job: Job) -> Any:
    """The model with PEFT's adapters, on the meta device. Raises UsageError where PEFT finds no layer to adapt."""
    lora = job.lora
    assert lora is not None
    try:
        with quiet():
            import peft
    except ImportError:
        raise MissingExtraError("LoRA in a dry run", "dryrun") from None
    all_linear = "all-linear" in lora.targets
    wanted = peft.LoraConfig(
        r=lora.rank,
        target_modules="all-linear" if all_linear else list(lora.targets),
        lora_dropout=lora.dropout,
        use_dora=lora.dora,
        task_type=_task(model),
    )
    with quiet(), torch.device("meta"), _targets_as_they_are(job):
        try:
            wrapped = peft.get_peft_model(model, wanted)
        except ValueError as error:
            raise UsageError(f"PEFT can't adapt this model ({str(error).splitlines()[0][:200]})") from None
    kind = getattr(torch, lora.dtype)
    for name, param in wrapped.named_parameters():
        if "lora_" in name:
            # On the meta device PEFT leaves its adapters in torch's default format; on a GPU they get the base's and then, by
            # autocast_adapter_dtype, float32.
            param.data = param.data.to(kind)
    return wrapped


@contextmanager
def _targets_as_they_are(job: Job) -> Iterator[None]:
    """Without the targets' conversion for stacked experts, for a version that had none."""
    from importlib import import_module

    if job.facts.adapts_experts:
        yield
        return
    try:
        module: Any = import_module("peft.utils.transformers_weight_conversion")
        convert = module.convert_peft_config_for_transformers
    except (ImportError, AttributeError):
        yield
        return
    module.convert_peft_config_for_transformers = lambda *_, **__: None
    try:
        yield
    finally:
        module.convert_peft_config_for_transformers = convert


def _task(model: Any) -> str | None:
    if getattr(model.config, "is_encoder_decoder", False):
        return "SEQ_2_SEQ_LM" if getattr(model, "main_input_name", "") == "input_ids" else None
    return "CAUSAL_LM" if hasattr(model, "prepare_inputs_for_generation") and model.can_generate() else None


def freeze(model: Any, job: Job) -> None:
    """Parts of full training that stay as they are (``job.frozen``). Raises BadValueError for a part the model lacks."""
    for part in job.frozen:
        found = _part(model, part)
        if not found:
            raise BadValueError(
                "freeze", part, f"a part of the model: {type(model).__name__} has no such one here"
            )
        for module in found:
            module.requires_grad_(False)


def _part(model: Any, part: str) -> list[Any]:
    if part == "embeddings":
        decoder = text_tower(model)
        tables = [m for m in decoder.modules() if isinstance(m, torch.nn.Embedding)]
        return tables or [m for m in (model.get_input_embeddings(),) if m is not None]
    if part == "head":
        found = model.get_output_embeddings()
        return [] if found is None else [found]
    if part == "towers":
        decoder = text_tower(model)
        inside = {id(m) for m in decoder.modules()}
        head = model.get_output_embeddings()
        outside = [
            m for m in model.modules() if id(m) not in inside and m is not head and not _holds(m, decoder)
        ]
        return [
            m for m in outside if any(True for _ in m.parameters(recurse=False)) or not list(m.children())
        ]
    layers = next(
        (
            m
            for m in text_tower(model).modules()
            if isinstance(m, torch.nn.ModuleList) and len(m) > 1 and _alike(m)
        ),
        None,
    )
    return [] if layers is None else list(layers[: int(part[6:])])


def _holds(module: Any, inner: Any) -> bool:
    return any(each is inner for each in module.modules())


def _alike(layers: Any) -> bool:
    return len({type(layer) for layer in layers}) == 1


def text_tower(model: Any) -> Any:
    """The decoder of a model: its language model, its decoder, or the whole network."""
    base = getattr(model, model.base_model_prefix, model) if hasattr(model, "base_model_prefix") else model
    for name in ("language_model", "text_model", "decoder"):
        found = getattr(base, name, None)
        if isinstance(found, torch.nn.Module):
            return found
    return base
