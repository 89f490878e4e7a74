"""What the answer rests on and nobody said: loss, attention, optimizer implementation, loop."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.jobs.job import Job
from loadmaster.jobs.quantizations import find, spelled
from loadmaster.memory.blocks.attention import kernel
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.components import optimizer
from loadmaster.memory.ledger import Assumption
from loadmaster.memory.tape import Tape
from loadmaster.models.parameters import generates
from loadmaster.models.spec import Attention, Experts, ModelSpec, StateSpace

LOSSES = {
    "hf": "as transformers: logits are upcast to float32 (about 12 bytes a logit at the peak)",
    "native": "cross-entropy in the logits' own format",
    "chunked": "cross-entropy over {chunks} chunks of the tokens",
    "cut": "cut cross-entropy (Apple): no logits in memory, a logsumexp a token",
    "fused": "fused linear cross-entropy (Liger): logits of a chunk at a time",
}

STACKED = (
    ", where experts are 3-D tensors that adapters and 4-bit loaders pass by (before 5 they reached them)"
)

PAGED = "paged states are missing from allocated and reserved: they take VRAM while there is room, host RAM otherwise"

FUSED_SCAN = "state space layers in mamba-ssm's and causal-conv1d's kernels; without them transformers' own loop keeps far more"

ENGINES = {
    "vllm": "vLLM as its API server starts it: {share:g} of the card, defaults of the card for tokens a step and sequences",
    "llama.cpp": "llama.cpp with every layer on the GPU and 512 tokens a micro-batch (--prefill-chunk says otherwise)",
}


def assumptions(spec: ModelSpec, job: Job, compute_capability: str | None = None) -> tuple[Assumption, ...]:
    """One line for each choice that moves the answer, whether it was said or not."""
    found = [Assumption(field="model", value=spec.name, text=text) for text in spec.assumed]
    kernels = attention_kernels(spec, job, compute_capability)
    if kernels:
        text = f"{job.attention} attention, which runs as {' and '.join(kernels)}; no padding mask"
        found.append(Assumption(field="attention", value=job.attention, text=text))
    if job.framework == "transformers" and spec.head is not None:
        text = (
            f"transformers 5{STACKED if _stacked(spec) else ''}; --framework 'transformers 4.57' for another"
        )
        found.append(Assumption(field="framework", value=job.framework, text=text))
    if any(isinstance(block.mixer, StateSpace) for tower in spec.towers for block in tower.blocks):
        found.append(Assumption(field="state space", value="fused", text=FUSED_SCAN))
    found += [
        Assumption(field=field, value=value, text=text)
        for field, value, text in (_training(spec, job) if job.training else _inference(spec, job))
    ]
    return tuple(found)


def _stacked(spec: ModelSpec) -> bool:
    """Whether versions differ in how they hold this model's experts."""
    parts = [block.feedforward for tower in spec.towers for block in tower.blocks]
    return any(isinstance(part, Experts) and part.stacked and not part.inputs_first for part in parts)


def attention_kernels(spec: ModelSpec, job: Job, compute_capability: str | None = None) -> list[str]:
    """The attention kernels that the layers take, by PyTorch's rules."""
    tape = Tape(autocast=job.precision.autocast)
    run = Run(job, tape, queries=job.seq_len, capability=compute_capability)
    mixers = [block.mixer for block in spec.decoder.blocks if isinstance(block.mixer, Attention)]
    return sorted({kernel(run, mixer, run.compute) for mixer in mixers})


_ONE_TABLE = " (token table and output projection are one parameter)"


def _training(spec: ModelSpec, job: Job) -> Iterator[tuple[str, str, str]]:
    if spec.head is not None:
        yield "loss", job.loss, LOSSES[job.loss].format(chunks=job.loss_chunks)
    name, implementation = job.optimizer.name, job.optimizer.implementation
    yield "optimizer", name, f"{name}, {implementation} implementation"
    if optimizer.paged(spec, job) is not None:
        yield "paged", name, PAGED
    yield "precision", job.precision.weights, _precision(job)
    if job.frozen:
        one = "" if spec.head is None or not spec.head.tied else _ONE_TABLE
        shared = one if {"head", "embeddings"} & set(job.frozen) else ""
        yield "frozen", ",".join(job.frozen), f"not trained: {', '.join(job.frozen)}{shared}; the rest is"
    if job.outputs_held:
        yield "outputs", "held", "the loop keeps the model's outputs through backward"
    else:
        yield "outputs", "freed", "outputs are freed before backward (Trainer, or loss = model(...).loss)"
    if job.lora is not None:
        targets = ", ".join(job.lora.targets)
        kind = "DoRA" if job.lora.dora else "LoRA"
        dropout = f", dropout {job.lora.dropout:g}" if job.lora.dropout else ", no dropout"
        yield (
            "lora",
            str(job.lora.rank),
            f"{kind} rank {job.lora.rank} on {targets}, adapters in {job.lora.dtype}{dropout}",
        )


def _inference(spec: ModelSpec, job: Job) -> Iterator[tuple[str, str, str]]:
    cache = job.kv_dtype or job.compute_dtype
    held = job.precision.weights
    if job.quantization is not None:
        held = f"{find(job.quantization.dtype).TEXT} ({spelled(job.quantization)}), the rest in {held}"
    if not generates(spec):
        yield "precision", job.precision.weights, f"weights in {held}, products in {job.compute_dtype}"
        return
    yield "precision", job.precision.weights, f"weights in {held}, KV cache in {cache}"
    chunk = job.prefill_chunk
    if job.facts.engine is not None:
        yield "engine", job.facts.engine, ENGINES[job.facts.engine].format(share=job.memory_utilization)
        return
    words = "the whole prompt at once" if chunk is None else f"{chunk} prompt tokens at a time"
    rows = "the last token" if job.logits == "last" else "the whole prompt"
    yield "prefill", str(chunk or "whole"), f"prefill takes {words}, logits of {rows}"


def _precision(job: Job) -> str:
    if job.quantization is not None:
        double = " with double quantisation" if job.quantization.double else ""
        rest = "float32" if job.quantization.upcast_rest else job.precision.weights
        return f"linear layers in {job.quantization.dtype}{double}, the rest in {rest}"
    if job.precision.master is not None:
        buffer = f", gradients added up in {job.precision.gradients}" if job.precision.gradients else ""
        return f"weights in {job.precision.weights}, {job.precision.master} master copies in the optimizer{buffer}"
    if job.precision.autocast is None:
        return f"everything in {job.precision.weights}, no autocast"
    return f"weights in {job.precision.weights}, autocast to {job.precision.autocast}"
