"""The door to Job: what people type, checked, with the defaults that follow from one another."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from loadmaster import dtypes
from loadmaster.errors import BadValueError, UnknownNameError
from loadmaster.jobs import optimizers
from loadmaster.jobs.job import (
    AttentionKind,
    Checkpointing,
    Job,
    Loader,
    Lora,
    LossKind,
    Method,
    Optimizer,
    Precision,
    Quantization,
    Task,
)

PRECISIONS = {
    "fp32": Precision(weights="float32"),
    "amp": Precision(weights="float32", autocast="bfloat16"),
    "bf16": Precision(weights="bfloat16"),
    "fp16": Precision(weights="float16"),
}
"""What ``--precision`` can be; ``amp`` is autocast to bfloat16 over float32 weights."""

LIMITS = {
    "micro_batch": 1 << 20,
    "seq_len": 1 << 26,
    "grad_accumulation": 1 << 20,
    "new_tokens": 1 << 26,
    "prefill_chunk": 1 << 26,
    "rank": 1 << 16,
    "workers": 4096,
    "prefetch": 4096,
}
"""Largest values taken: beyond them a question is a typing error, and byte counts would pass 2**63."""


def make_job(
    *,
    task: str = "finetune",
    method: str | None = None,
    precision: str | Precision | None = None,
    batch: int = 1,
    seq: int | None = None,
    grad_accumulation: int = 1,
    optimizer: str = "adamw",
    optimizer_implementation: str | None = None,
    checkpointing: str = "none",
    attention: str = "sdpa",
    loss: str = "hf",
    rank: int | None = None,
    targets: str | tuple[str, ...] | None = None,
    new_tokens: int = 0,
    prefill_chunk: int | None = None,
    logits: str = "last",
    kv_dtype: str | None = None,
    workers: int = 0,
    prefetch: int = 2,
    pin_memory: bool = False,
) -> Job:
    """A checked Job from the words of the command line; raises UsageError (one sentence) for what can't be.

    Defaults that follow from others: ``method`` is full; ``precision`` is amp for full training and bf16 otherwise;
    ``seq`` is 2048.
    """
    choose("task", task, get_args(Task))
    method = choose("method", method or "full", get_args(Method))
    training = task in ("train", "finetune")
    if not training and method != "full":
        raise BadValueError(
            "method", method, "full when task is infer or serve: adapters only exist in training"
        )
    lora = None
    if method != "full":
        lora = Lora(rank=whole("rank", 16 if rank is None else rank, "rank"), targets=_targets(targets))
    elif rank is not None or targets is not None:
        raise BadValueError("rank", rank, "no rank or targets unless method is lora or qlora")
    seq = whole("seq", 2048 if seq is None else seq, "seq_len")
    new = whole("new_tokens", new_tokens, "new_tokens", least=0)
    if new > seq:
        raise BadValueError(
            "new_tokens", new, f"at most seq ({seq}), which counts prompt and generated tokens"
        )
    return Job(
        task=task,  # type: ignore[arg-type]
        method=method,  # type: ignore[arg-type]
        precision=_precision(precision, method=method, training=training),
        micro_batch=whole("batch", batch, "micro_batch"),
        seq_len=seq,
        grad_accumulation=whole("grad_accumulation", grad_accumulation, "grad_accumulation"),
        optimizer=_optimizer(optimizer, optimizer_implementation),
        checkpointing=choose("checkpointing", checkpointing, get_args(Checkpointing)),  # type: ignore[arg-type]
        attention=choose("attention", attention, get_args(AttentionKind)),  # type: ignore[arg-type]
        loss=choose("loss", loss, get_args(LossKind)),  # type: ignore[arg-type]
        lora=lora,
        quantization=Quantization() if method == "qlora" else None,
        new_tokens=new,
        prefill_chunk=None
        if prefill_chunk is None
        else whole("prefill_chunk", prefill_chunk, "prefill_chunk"),
        logits=choose("logits", logits, ("last", "all")),  # type: ignore[arg-type]
        kv_dtype=None if kv_dtype is None else dtypes.canonical(kv_dtype),
        loader=Loader(
            workers=whole("workers", workers, "workers", least=0),
            prefetch=whole("prefetch", prefetch, "prefetch"),
            pin_memory=pin_memory,
        ),
    )


def choose(field: str, value: Any, choices: tuple[str, ...]) -> str:
    """The value if it is one of the choices; otherwise one sentence with the nearest of them."""
    if value in choices:
        return str(value)
    near = difflib.get_close_matches(str(value), choices, n=1)
    raise UnknownNameError(field, str(value), near, hint=f"choices: {', '.join(choices)}")


def whole(field: str, value: Any, limit: str, *, least: int = 1) -> int:
    """The value if it is a whole number between ``least`` and its limit; raises BadValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LIMITS[limit]:
        raise BadValueError(field, value, f"a whole number from {least} to {LIMITS[limit]}")
    return value


def _targets(targets: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if targets is None:
        return ("all-linear",)
    names = tuple(part.strip() for part in targets.split(",")) if isinstance(targets, str) else tuple(targets)
    if not names or not all(names):
        raise BadValueError("targets", targets, "all-linear or module names such as q_proj,v_proj")
    return names


def _precision(precision: str | Precision | None, *, method: str, training: bool) -> Precision:
    if isinstance(precision, Precision):
        return precision
    if precision is None:
        precision = "amp" if training and method == "full" else "bf16"
    return PRECISIONS[choose("precision", precision, tuple(PRECISIONS))]


def _optimizer(name: str, implementation: str | None) -> Optimizer:
    module = optimizers.find(name)
    if implementation is None:
        implementation = module.IMPLEMENTATIONS[0]
    choose(f"implementation of {module.NAME}", implementation, module.IMPLEMENTATIONS)
    return Optimizer(name=module.NAME, implementation=implementation)  # type: ignore[arg-type]
