"""Activation checkpointing as a Job asks for it, through transformers' own switch and torch.utils.checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from loadmaster.dryrun.programs.building import quiet
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
)


def enable(model: Any, job: Job) -> None:
    """Checkpoint the layers that ``job.checkpoints`` names (of each tower by position); with adapters the embedding's output
    asks for a gradient, as PEFT and transformers' Trainer do it. Raises BadValueError where the class can't."""
    if job.checkpointing == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if job.checkpointing == "selective":
        options["context_fn"] = selective
    switch = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    with quiet():
        try:
            if "activations" in job.offload:
                model.activation_checkpointing_enable(options, offload=True)
            else:
                assert switch is not None
                switch(options)
        except (ValueError, AssertionError, AttributeError, TypeError):
            raise BadValueError(
                "checkpointing", job.checkpointing, f"none: {type(model).__name__} has no checkpointing"
            ) from None
        if job.lora is not None:
            model.enable_input_require_grads()
    for layers in _stacks(model):
        for position, layer in enumerate(layers):
            layer.gradient_checkpointing = job.checkpoints(position)


def _stacks(model: Any) -> list[list[Any]]:
    """The checkpointed layers of each list of modules, in order."""
    found = []
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            layers = [layer for layer in module if getattr(layer, "gradient_checkpointing", False)]
            if layers:
                found.append(layers)
    return found


def selective() -> Any:
    """torchtitan's policy per operator (activation_checkpoint.py): results of attention kernels and of every second
    ``aten.mm``, from the first on, are kept."""
    counts: Counter[bool] = Counter()

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> Any:
        if function is aten.mm.default:
            counts[context.is_recompute] += 1
        keep = function in ATTENTION or (function is aten.mm.default and counts[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
