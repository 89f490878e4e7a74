"""What the answer rests on and nobody said: loss, attention, optimizer implementation, loop."""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.memory.blocks.attention import kernel
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.ledger import Assumption
from loadmaster.memory.tape import Tape
from loadmaster.models.spec import Attention, ModelSpec

LOSSES = {
    "hf": "transformers' own loss: logits are upcast to float32 (about 12 bytes a logit at the peak)",
    "native": "cross-entropy in the logits' own format",
    "chunked": "cross-entropy over {chunks} chunks of the tokens",
    "fused": "fused linear cross-entropy (Liger): logits of a chunk at a time",
}


def assumptions(spec: ModelSpec, job: Job) -> tuple[Assumption, ...]:
    """One line for each choice that moves the answer, whether it was said or not."""
    found = [Assumption(field="model", value=spec.name, text=text) for text in spec.assumed]
    kernels = sorted(
        {
            kernel(Run(job, Tape(autocast=job.precision.autocast), queries=1), b.mixer, job.precision.weights)
            for b in spec.decoder.blocks
            if isinstance(b.mixer, Attention)
        }
    )
    if kernels:
        found.append(
            Assumption(
                field="attention",
                value=job.attention,
                text=f"{job.attention} attention, which runs as {' and '.join(kernels)}; no padding mask",
            )
        )
    if job.training:
        if spec.head is not None:
            found.append(
                Assumption(field="loss", value=job.loss, text=LOSSES[job.loss].format(chunks=job.loss_chunks))
            )
        found.append(
            Assumption(
                field="optimizer",
                value=job.optimizer.name,
                text=f"{job.optimizer.name}, {job.optimizer.implementation} implementation",
            )
        )
        found.append(Assumption(field="precision", value=job.precision.weights, text=_precision(job)))
        text = (
            "the loop keeps the model's outputs through backward"
            if job.outputs_held
            else "outputs are freed before backward (Trainer, or loss = model(...).loss)"
        )
        found.append(Assumption(field="outputs", value="held" if job.outputs_held else "freed", text=text))
        if job.lora is not None:
            found.append(
                Assumption(
                    field="lora",
                    value=str(job.lora.rank),
                    text=f"LoRA rank {job.lora.rank} on {', '.join(job.lora.targets)}, adapters in {job.lora.dtype}",
                )
            )
    else:
        found.append(
            Assumption(
                field="precision",
                value=job.precision.weights,
                text=f"weights in {job.precision.weights}, KV cache in {job.kv_dtype or job.compute_dtype}",
            )
        )
        chunk = (
            "the whole prompt at once"
            if job.prefill_chunk is None
            else f"{job.prefill_chunk} prompt tokens at a time"
        )
        found.append(
            Assumption(
                field="prefill",
                value=str(job.prefill_chunk or "whole"),
                text=f"prefill takes {chunk}, logits of the {'last token' if job.logits == 'last' else 'whole prompt'}",
            )
        )
    return tuple(found)


def _precision(job: Job) -> str:
    if job.quantization is not None:
        double = " with double quantisation" if job.quantization.double else ""
        return f"linear layers in {job.quantization.dtype}{double}, the rest in {'float32' if job.quantization.upcast_rest else job.precision.weights}"
    if job.precision.autocast is None:
        return f"everything in {job.precision.weights}, no autocast"
    return f"weights in {job.precision.weights}, autocast to {job.precision.autocast}"
