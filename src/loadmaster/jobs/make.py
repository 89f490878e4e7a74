"""The door to Job: what people type, checked, with the defaults that follow from one another."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from loadmaster import dtypes
from loadmaster.errors import BadValueError, UnknownNameError
from loadmaster.jobs import optimizers, quantizations
from loadmaster.jobs.frameworks import Facts, facts
from loadmaster.jobs.job import (
    AttentionKind,
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
from loadmaster.records import Record
from loadmaster.units import parse_bytes

PRECISIONS = {
    "fp32": Precision(weights="float32"),
    "amp": Precision(weights="float32", autocast="bfloat16"),
    "bf16": Precision(weights="bfloat16"),
    "fp16": Precision(weights="float16"),
    "bf16-master": Precision(weights="bfloat16", master="float32"),
    "fp16-master": Precision(weights="float16", master="float32"),
    "megatron": Precision(weights="bfloat16", master="float32", gradients="float32"),
}
"""What ``--precision`` can be. ``amp`` is autocast to bfloat16 over float32 weights; ``-master``: 16-bit weights, of which
the optimizer keeps float32 copies (apex O2, DeepSpeed: 16 bytes a parameter); ``megatron``: and adds gradients up in
float32 (18 bytes)."""

MANY = 10**6
LIMITS = {
    "micro_batch": MANY,
    "seq_len": 64 * MANY,
    "grad_accumulation": MANY,
    "new_tokens": 64 * MANY,
    "prefill_chunk": 64 * MANY,
    "rank": 65_536,
    "workers": 4_096,
    "prefetch": 4_096,
    "images": 4_096,
    "loss_chunks": 4_096,
}
"""Largest values taken: beyond them a question is a typing error, and byte counts would pass 2**63."""

OFFLOADS = ("optimizer", "gradients", "activations")


class Words(Record, kw_only=True):
    """What people say of a job, with what holds where they don't; None follows from the other words."""

    task: str = "finetune"
    method: str | None = None
    precision: str | Precision | None = None
    batch: int = 1
    seq: int | None = None
    grad_accumulation: int = 1
    eval_batch: int | None = None
    optimizer: str = "adamw"
    optimizer_implementation: str | None = None
    optimizer_rank: int | None = None
    optimizer_in_backward: bool = False
    checkpointing: str = "none"
    attention: str = "sdpa"
    loss: str = "hf"
    loss_chunks: int = 8
    rank: int | None = None
    targets: str | tuple[str, ...] | None = None
    lora_dropout: float = 0.0
    dora: bool = False
    quantization: str | None = None
    freeze: str | tuple[str, ...] | None = None
    offload: str | tuple[str, ...] | None = None
    compile: bool = False
    framework: str = "transformers"
    hold_outputs: bool = False
    images: int = 1
    source_seq: int | None = None
    new_tokens: int = 0
    prefill_chunk: int | None = None
    logits: str = "last"
    kv_dtype: str | None = None
    memory_utilization: float = 0.9
    max_sequences: int | None = None
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False
    dataset: str | int | None = None


def make_job(**given: Any) -> Job:
    """A checked Job from the fields of ``Words``; raises UsageError (one sentence) for what can't be.

    Defaults that follow from others: ``method`` is full; ``precision`` is amp for full training and bf16 otherwise;
    ``seq`` is 2048; ``optimizer_implementation`` is what the framework's recipes take.
    """
    for field in given:
        if field not in Words.__struct_fields__:
            near = difflib.get_close_matches(field, Words.__struct_fields__, n=1)
            raise UnknownNameError("option", field, near)
    said = Words(**given)
    choose("task", said.task, get_args(Task))
    method = choose("method", said.method or "full", METHODS)
    dora = truth("dora", said.dora) or method == "dora"
    method = "lora" if method == "dora" else method
    training = said.task in ("train", "finetune")
    if not training and method != "full":
        raise BadValueError(
            "method", method, "full when task is infer or serve: adapters only exist in training"
        )
    if not isinstance(said.framework, str):
        raise BadValueError("framework", said.framework, "the name of a library, such as transformers")
    known = facts(said.framework)
    precision = _precision(said.precision, method=method, training=training)
    seq = whole("seq", 2048 if said.seq is None else said.seq, "seq_len")
    return Job(
        task=said.task,  # type: ignore[arg-type]
        method=method,  # type: ignore[arg-type]
        precision=precision,
        micro_batch=whole("batch", said.batch, "micro_batch"),
        seq_len=seq,
        grad_accumulation=whole("grad_accumulation", said.grad_accumulation, "grad_accumulation"),
        eval_batch=maybe("eval_batch", said.eval_batch, "micro_batch"),
        optimizer=_optimizer(said, known, master=precision.master is not None),
        optimizer_in_backward=truth("optimizer_in_backward", said.optimizer_in_backward),
        lora=_lora(said, method, dora=dora),
        quantization=_quantization(said, method),
        frozen=_frozen(said.freeze, trains_all=training and method == "full"),
        offload=_offload(said.offload),  # type: ignore[arg-type]
        compile=truth("compile", said.compile),
        framework=said.framework,
        outputs_held=truth("hold_outputs", said.hold_outputs),
        images=whole("images", said.images, "images", least=0),
        source_len=maybe("source_seq", said.source_seq, "seq_len"),
        loader=_loader(said),
        **_kinds(said, known, precision),
        **_inference(said, seq),
    )


def _loss(said: str, precision: Precision) -> str:
    if said == "cut" and (precision.autocast or precision.weights) == "float32":
        raise BadValueError("loss", said, "cut only with 16-bit products (precision amp, bf16 or fp16)")
    return choose("loss", said, get_args(LossKind))


def _kinds(said: Words, known: Facts, precision: Precision) -> dict[str, Any]:
    return {
        "checkpointing": _checkpointing(said.checkpointing),
        "attention": known.attention or choose("attention", said.attention, get_args(AttentionKind)),
        "loss": _loss(said.loss, precision),
        "loss_chunks": whole("loss_chunks", said.loss_chunks, "loss_chunks"),
    }


CHECKPOINTING = ("none", "full", "selective")


def _checkpointing(said: str) -> str:
    """One of the kinds, or every:K, where every:1 is full."""
    kind, colon, every = str(said).partition(":")
    if kind != "every":
        return choose("checkpointing", said, (*CHECKPOINTING, "every:2"))
    if not (colon and every.isascii() and every.isdigit() and len(every) < 5 and int(every)):
        raise BadValueError("checkpointing", said, "every: and a number of layers, such as every:2")
    return "full" if int(every) == 1 else f"every:{int(every)}"


def _inference(said: Words, seq: int) -> dict[str, Any]:
    new = whole("new_tokens", said.new_tokens, "new_tokens", least=0)
    if new > seq:
        raise BadValueError(
            "new_tokens", new, f"at most seq ({seq}), which counts prompt and generated tokens"
        )
    kv = said.kv_dtype if said.kv_dtype in (None, "q8_0", "q4_0") else dtypes.canonical(str(said.kv_dtype))
    if kv in ("q8_0", "q4_0") and facts(said.framework).engine != "llama.cpp":
        raise BadValueError("kv_dtype", kv, "another format unless framework is llama.cpp")
    share = said.memory_utilization
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise BadValueError("memory_utilization", share, "more than 0 and at most 1")
    if kv is not None and kv not in KV_FORMATS:
        raise BadValueError("kv_dtype", said.kv_dtype, f"one of {', '.join(KV_FORMATS)}")
    return {
        "new_tokens": new,
        "prefill_chunk": maybe("prefill_chunk", said.prefill_chunk, "prefill_chunk"),
        "logits": choose("logits", said.logits, ("last", "all")),
        "kv_dtype": kv,
        "memory_utilization": float(share),
        "max_sequences": maybe("max_sequences", said.max_sequences, "micro_batch"),
    }


KV_FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8", "int4", "q8_0", "q4_0")
"""Formats that caches of keys and values come in (transformers' QuantizedCache, vLLM's --kv-cache-dtype, llama.cpp's -ctk)."""


METHODS = (*get_args(Method), "dora")
"""Ways to train; dora is lora with magnitudes."""


def _lora(said: Words, method: str, *, dora: bool) -> Lora | None:
    dropout = said.lora_dropout
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise BadValueError("lora_dropout", dropout, "a number from 0 to 1, such as 0.05")
    if dora and facts(said.framework).lora != "peft":
        raise BadValueError("dora", True, f"none with {said.framework}, which has no DoRA")
    if method != "full":
        rank = whole("rank", 16 if said.rank is None else said.rank, "rank")
        return Lora(rank=rank, targets=_targets(said.targets), dropout=float(dropout), dora=dora)
    if dora or dropout:
        raise BadValueError(
            "dora" if dora else "lora_dropout", True if dora else dropout, "none without lora or qlora"
        )
    for field, value in (("rank", said.rank), ("targets", said.targets)):
        if value is not None:
            raise BadValueError(field, value, f"no {field} unless method is lora or qlora")
    return None


def _quantization(said: Words, method: str) -> Quantization | None:
    if said.quantization is None:
        return Quantization() if method == "qlora" else None
    if method != "qlora" and said.task in ("train", "finetune"):
        raise BadValueError(
            "quantization", said.quantization, "none unless method is qlora or task is infer or serve"
        )
    if not isinstance(said.quantization, str):
        raise BadValueError("quantization", said.quantization, "a name")
    half = method != "qlora" and said.precision in ("fp16", PRECISIONS["fp16"])
    found = quantizations.named(said.quantization, compute="float16" if half else "bfloat16")
    module = quantizations.find(found.dtype)
    if said.task in ("train", "finetune") and not module.TRAINABLE:
        raise BadValueError("quantization", said.quantization, "a format that adapters can be trained on")
    return found


FREEZABLE = ("embeddings", "head", "towers")


def _frozen(given: str | tuple[str, ...] | None, *, trains_all: bool) -> tuple[str, ...]:
    if given is not None and not isinstance(given, str | tuple | list):
        raise BadValueError("freeze", given, "names such as embeddings,first:12")
    names = tuple(given.split(",")) if isinstance(given, str) else tuple(given or ())
    if names and not trains_all:
        raise BadValueError(
            "freeze", ",".join(map(str, names)), "none but in full training: adapters freeze the rest"
        )
    layers = 0
    for name in names:
        count = str(name).partition("first:")[2]
        if not (str(name).startswith("first:") and count.isascii() and count.isdigit() and len(count) < 6):
            choose("freeze", name, (*FREEZABLE, "first:12"))
        layers = max(layers, int(count or 0))
    found = tuple(part for part in FREEZABLE if part in names)
    return (*found, f"first:{layers}") if layers else found


def _offload(given: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if given is not None and not isinstance(given, str | tuple | list):
        raise BadValueError("offload", given, f"names such as {','.join(OFFLOADS)}")
    names = tuple(given.split(",")) if isinstance(given, str) else tuple(given or ())
    for name in names:
        choose("offload", name, OFFLOADS)
    return tuple(name for name in OFFLOADS if name in names)


def _loader(said: Words) -> Loader:
    return Loader(
        workers=whole("workers", said.workers, "workers", least=0),
        prefetch=whole("prefetch", said.prefetch, "prefetch"),
        pin_memory=truth("pin_memory", said.pin_memory),
        dataset_bytes=_size("dataset", said.dataset),
    )


def _size(field: str, said: str | int | None) -> int:
    """Bytes of a size such as 20GiB or a whole number of bytes; 0 where none is said."""
    if said is None:
        return 0
    if isinstance(said, bool) or not isinstance(said, str | int):
        raise BadValueError(field, said, "a size such as 20GiB")
    try:
        size = parse_bytes(said) if isinstance(said, str) else said
    except (ValueError, OverflowError):
        raise BadValueError(field, said, "a size such as 20GiB") from None
    if not 0 <= size < 2**60:
        raise BadValueError(field, said, "0 or more and less than 1 EiB")
    return size


def truth(field: str, value: Any) -> bool:
    """The value if it is True or False; raises BadValueError otherwise."""
    if not isinstance(value, bool):
        raise BadValueError(field, value, "True or False")
    return value


def maybe(field: str, value: Any, limit: str) -> int | None:
    """None, or a whole number from 1 to its limit."""
    return None if value is None else whole(field, value, limit)


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


def recipe_implementation(known: Facts, implementations: tuple[str, ...], *, master: bool) -> str:
    """What runs where nobody says: the framework's choice; with master weights the fused kernel that apex, DeepSpeed and
    Megatron-LM bring."""
    usual = "fused" if master else known.optimizer_implementation
    return usual if usual in implementations else implementations[0]


def _optimizer(said: Words, known: Facts, *, master: bool) -> Optimizer:
    module = optimizers.find(said.optimizer)
    implementation = said.optimizer_implementation
    if implementation is None:
        implementation = recipe_implementation(known, module.IMPLEMENTATIONS, master=master)
    choose(f"implementation of {module.NAME}", implementation, module.IMPLEMENTATIONS)
    if said.optimizer_rank is not None and not hasattr(module, "RANK"):
        raise BadValueError("optimizer_rank", said.optimizer_rank, f"none: {module.NAME} projects nothing")
    rank = maybe("optimizer_rank", said.optimizer_rank, "rank")
    return Optimizer(name=module.NAME, implementation=implementation, rank=rank)  # type: ignore[arg-type]
