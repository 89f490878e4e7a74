"""From a row's own fields to a question for ``memory.predict``: a model, a job, and which figure to compare.

Every rule here reads what a field says, whoever wrote it: none looks at an id, a group or a source. What Job can't say
is a reason (``Unmapped``), so that a new field of Job takes one line away here.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from loadmaster.errors import LoadmasterError
from loadmaster.hardware import Device, usable
from loadmaster.jobs import optimizers
from loadmaster.jobs.frameworks import facts
from loadmaster.jobs.job import Job, Lora, Optimizer, Precision, Quantization
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Record
from loadmaster.units import GIB
from loadmaster.workflows.truth import packed, words
from loadmaster.workflows.truth.rows import Row
from loadmaster.workflows.truth.targets import lora_targets

Convention = Literal["allocated", "reserved", "process", "weights", "kv cache"]

CONVENTIONS: dict[str, Convention] = {
    "max_allocated": "allocated",
    "max_active": "allocated",
    "max_reserved": "reserved",
    "nvidia-smi": "process",
    "model_weights": "weights",
    "kv_cache": "kv cache",
    "unknown": "allocated",
}
"""Which figure of a ledger a counter is compared with. Active bytes are allocated ones and what waits for another
stream; a counter that isn't named is taken to be the commonest one, max_memory_allocated."""


class Unmapped(Exception):  # noqa: N818 (it is an answer, not a failure)
    """Why a row has no prediction, in one clause."""


class Question(Record, kw_only=True):
    """What is asked of the ledger: ``phase`` None is its peak. ``assumed`` says what the row left open or Job leaves
    out."""

    spec: ModelSpec
    job: Job
    convention: Convention
    device: Device | None = None
    phase: str | None = None
    pool_of_bytes: int | None = None
    """Compare what a server's budget of a card of this many bytes leaves to KV cache."""
    assumed: tuple[str, ...] = ()


def question(row: Row, spec: ModelSpec, device: Device | None, *, sharded: bool = False) -> Question:
    """The question that a row asks; raises Unmapped when Job or Ledger can't express it. ``sharded``: of one of several GPUs,
    how it is split is another's question."""
    convention = CONVENTIONS.get(row.measured.what)
    if convention is None:
        raise Unmapped(f"no figure of a ledger is a {row.measured.what}")
    assumed: list[str] = []
    if row.measured.what == "unknown":
        assumed.append("the counter isn't stated; taken to be allocated bytes")
    if not sharded:
        _one_device(row, assumed)
    phase = None
    try:
        if row.kind == "train":
            job, phase = _training(row, spec, assumed), _phase(row)
        else:
            job, phase = _inference(row, spec, convention, assumed), _phase(row)
    except LoadmasterError as error:
        raise Unmapped(str(error)) from None
    pool = None
    if convention == "kv cache" and words.lengths(row.notes).cached is None:
        pool = _pool_of(row, job, device)
    if convention in ("weights", "kv cache"):
        phase = "load" if convention == "weights" else None
    return Question(
        spec=spec, job=job, convention=convention, device=device, phase=phase, pool_of_bytes=pool,
        assumed=tuple(assumed),
    )  # fmt: skip


def _pool_of(row: Row, job: Job, device: Device | None) -> int:
    """The card's memory as CUDA sees it, where a KV pool is what a server's budget leaves of it."""
    if job.facts.engine is None:
        raise Unmapped("a KV pool is what a server's budget leaves; the server isn't known")
    stated = re.search(r"\(([\d.]+) GiB\)", row.gpu or "", re.ASCII)
    if stated:
        return int(float(stated.group(1)) * GIB)
    if device is None:
        raise Unmapped("a KV pool is what a server's budget leaves of a card; which isn't stated")
    return usable(device).visible_bytes.likely


def _one_device(row: Row, assumed: list[str]) -> None:
    """A row over several devices can be asked of one only where its figure is the sum over a plain split of layers."""
    gpus = row.gpus
    if gpus == 1:
        return
    if gpus is None:
        raise Unmapped("the number of GPUs isn't stated")
    note = str((row.parallel or {}).get("note", ""))
    if "layer split" in note and (row.measured.scope or "").startswith("sum"):
        assumed.append(f"layers split over {gpus} GPUs, figures summed: taken as one device")
        return
    kinds = (
        ", ".join(k for k in (row.parallel or {}) if k not in ("gpus", "note")) or note or "how isn't stated"
    )
    raise Unmapped(f"{gpus} GPUs ({kinds}): only one device can be planned yet")


def _phase(row: Row) -> str | None:
    text = (row.method or "").lower()
    return "load" if "before training" in text or "weights only" in text else None


def method_word(row: Row) -> str:
    """The method without what stands in brackets or after a comma."""
    return re.sub(r"\(.*?\)", "", row.method or "").partition(",")[0].strip().lower()


def _training(row: Row, spec: ModelSpec, assumed: list[str]) -> Job:
    method = method_word(row)
    method = "lora" if method == "dora" else method
    if method not in ("full", "lora", "qlora"):
        raise Unmapped(f"the method {row.method!r} can't be planned")
    if "frozen" in (row.method or "") or "layer-wise" in (row.notes or "").lower():
        raise Unmapped(f"training of parts of the model can't be planned ({row.method})")
    batch, tokens = row.batch_size, _training_tokens(row, spec, assumed)
    if batch is None:
        raise Unmapped("the batch size isn't stated")
    framework = words.framework(row.framework, assumed)
    precision, quantization = _formats(row, method)
    if method == "full" and quantization is not None:
        raise Unmapped(f"full training of {row.weights_dtype} weights can't be planned")
    loss = words.loss_kind(row.fused_loss)
    if loss is None:
        raise Unmapped(f"the loss {row.fused_loss!r} can't be planned")
    chunks = loss.chunks or (-(-tokens // loss.chunk_tokens) * batch if loss.chunk_tokens else 8)
    optimizer = _optimizer(row, framework)
    if method == "full":
        _moments(row, optimizer, precision)
    return Job(
        task="train" if "pretraining" in (row.method or "") else "finetune",
        method=method,  # type: ignore[arg-type]
        precision=precision,
        micro_batch=batch,
        seq_len=tokens,
        grad_accumulation=row.grad_accum or 1,
        optimizer=optimizer,
        checkpointing=_checkpointing(row),
        attention=_attention(row),  # type: ignore[arg-type]
        loss=loss.kind,  # type: ignore[arg-type]
        loss_chunks=chunks,
        lora=_lora(row, spec, assumed) if method != "full" else None,
        quantization=quantization,
        framework=framework,
        compile=row.compile is True,
        offload=_offload(row),
        optimizer_in_backward=bool((row.optimizer or {}).get("in_backward")),
    )


def _training_tokens(row: Row, spec: ModelSpec, assumed: list[str]) -> int:
    image = row.image or {}
    if isinstance(image.get("tokens"), int):
        return int(image["tokens"])
    latent, text = image.get("latent_tokens"), image.get("text_tokens")
    if isinstance(latent, int) and isinstance(text, int):
        return latent + text
    if image:
        raise Unmapped("pictures of this model aren't counted as tokens")
    if row.seq_len is not None:
        return row.seq_len
    if _phase(row) == "load":
        return 1
    stated = words.lengths(row.notes)
    if stated.longest is not None:
        assumed.append(f"padded to the longest sample that the notes state, {stated.longest} tokens")
        return stated.longest
    raise Unmapped("the sequence length isn't stated")


def _formats(row: Row, method: str) -> tuple[Precision, Quantization | None]:
    stored = words.stored_format(row.weights_dtype)
    compute, autocast = words.compute_format(row.compute_dtype)
    if stored.rest is None and stored.kind is None:
        raise Unmapped(f"weights in {row.weights_dtype!r} can't be planned")
    compute = compute or stored.rest
    if compute is None:
        raise Unmapped("the compute format isn't stated")
    if stored.packed is None:
        if stored.rest != compute and not autocast:
            raise Unmapped(f"weights in {row.weights_dtype!r} with products in {row.compute_dtype!r}")
        return Precision(weights=stored.rest or compute, autocast=compute if autocast else None), None
    quantization = packed.quantization(stored, words.framework(row.framework, []), compute, row.notes)
    if quantization is None:
        raise Unmapped(f"weights in {row.weights_dtype!r} can't be planned yet")
    rest = Precision(weights=stored.rest or compute, autocast=compute if autocast else None)
    return rest, quantization


def _offload(row: Row) -> tuple[Literal["optimizer", "gradients", "activations"], ...]:
    """What lives in host memory, by the words of the field."""
    if row.offload is None:
        return ()
    text = row.offload.lower()
    kinds: tuple[tuple[Literal["optimizer", "gradients", "activations"], str], ...] = (
        ("optimizer", "optimizer"), ("gradients", "gradient"), ("activations", "activation"),
    )  # fmt: skip
    found = tuple(kind for kind, word in kinds if word in text)
    if not found or "cpu" not in text or "parameter" in text or "zero" in text:
        raise Unmapped(f"offload of {row.offload!r} can't be planned")
    return found


def _optimizer(row: Row, framework: str) -> Optimizer:
    stated: dict[str, Any] = row.optimizer or {"name": "adamw"}
    module = optimizers.find(words.optimizer_name(str(stated.get("name", ""))))
    implementation = "fused" if stated.get("fused") else facts(framework).optimizer_implementation
    if implementation not in module.IMPLEMENTATIONS:
        implementation = module.IMPLEMENTATIONS[0]
    return Optimizer(name=module.NAME, implementation=implementation)


def _moments(row: Row, optimizer: Optimizer, precision: Precision) -> None:
    """AdamW's moments are in the parameter's format; a row that says otherwise is not that AdamW."""
    stated = (row.optimizer or {}).get("state_dtype")
    found = words.number_format(str(stated).split()[0]) if stated else None
    if optimizer.name == "adamw" and found not in (None, precision.weights):
        raise Unmapped(f"{precision.weights} weights with {found} optimizer states can't be planned yet")


def _checkpointing(row: Row) -> str:
    word = re.sub(r"\(.*?\)", "", row.checkpointing or "none").strip().lower()
    if word in ("none", "full", "selective"):
        return word
    raise Unmapped(f"checkpointing {row.checkpointing!r} can't be planned")


def _attention(row: Row) -> str:
    kind = words.attention_kind(row.attention)
    if kind is None:
        raise Unmapped(f"{row.attention!r} attention can't be planned")
    return kind


def _lora(row: Row, spec: ModelSpec, assumed: list[str]) -> Lora:
    stated = row.lora or {}
    rank, targets = stated.get("r"), stated.get("targets")
    if not isinstance(rank, int):
        raise Unmapped("the adapter's rank isn't stated")
    if not targets:
        raise Unmapped("the adapter's targets aren't stated")
    found = lora_targets(spec, [str(t) for t in targets])
    if found.missing:
        raise Unmapped(f"LoRA on {', '.join(found.missing)} can't be planned")
    if found.fused:
        assumed.append(f"{', '.join(found.fused)} is one matrix here: adapted as a whole")
    state = (row.optimizer or {}).get("state_dtype")
    # AdamW's moments have the adapter's own format (zeros_like), so that is what the adapter is in. Where they aren't
    # stated: PEFT keeps adapters in float32 (autocast_adapter_dtype), others in the base's format.
    dtype = words.number_format(str(state).split()[0]) if state else None
    if dtype is None and "peft" not in row.framework.lower():
        dtype = words.stored_format(row.weights_dtype).rest
    dora = bool(stated.get("use_dora")) or method_word(row) == "dora"
    return Lora(rank=rank, targets=found.targets, dtype=dtype or "float32", dora=dora)


def _inference(row: Row, spec: ModelSpec, convention: Convention, assumed: list[str]) -> Job:
    method = method_word(row)
    if method not in ("generate", "forward", "serve", "weights only"):
        raise Unmapped(f"the task {row.method!r} can't be planned")
    stated = words.lengths(row.notes)
    precision, quantization = _formats(row, method)
    whole, new, chunk = _inference_tokens(row, stated, convention, assumed)
    everything = "all positions" in (row.fused_loss or "") or "every prompt position" in (row.notes or "")
    return Job(
        task="serve" if method == "serve" else "infer",
        precision=precision,
        micro_batch=row.batch_size or 1,
        seq_len=whole,
        attention=_prompt_attention(row, convention),  # type: ignore[arg-type]
        quantization=quantization,
        new_tokens=new,
        prefill_chunk=chunk,
        logits="all" if everything else "last",
        framework=words.framework(row.framework, assumed),
        memory_utilization=stated.share or 0.9,
    )


def _prompt_attention(row: Row, convention: Convention) -> str:
    """The library's own attention where it has one, else what the row says."""
    own = facts(words.framework(row.framework, [])).attention
    return own or (_attention(row) if convention != "weights" else "sdpa")


def _inference_tokens(
    row: Row, stated: words.Lengths, convention: Convention, assumed: list[str]
) -> tuple[int, int, int | None]:
    """(prompt and generated tokens, generated ones, prompt tokens processed at once)."""
    if convention == "kv cache" and stated.cached is not None:
        return stated.cached, 0, 1
    if convention == "weights" or _phase(row) == "load":
        return 1, 0, None
    if convention == "kv cache" and row.seq_len is not None:
        return row.seq_len, 0, None
    chunk = 1 if stated.chunked_prefill else None
    if chunk:
        assumed.append("the prompt was processed in chunks of a size that isn't stated: taken as one token")
    if row.seq_len is None:
        if not stated.short or stated.new is None:
            raise Unmapped("the sequence length isn't stated")
        assumed.append(f"a short prompt is taken to be {words.SHORT_PROMPT} tokens")
        return words.SHORT_PROMPT + stated.new, stated.new, chunk
    if method_word(row) == "forward":
        return row.seq_len, 0, chunk
    if stated.prompt is not None and stated.prompt < row.seq_len:
        return row.seq_len, row.seq_len - stated.prompt, chunk
    if stated.new is not None and stated.new < row.seq_len:
        return row.seq_len, stated.new, chunk
    if not stated.short:
        assumed.append("how the length splits into prompt and new tokens isn't stated: taken as generated")
    return row.seq_len, row.seq_len - 1, chunk
