"""What becomes of each field of a Job in a dry run: done, or refused in one sentence; nothing is passed over in silence."""

from __future__ import annotations

from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

KERNELS = ("flash", "efficient", "math")
FLASH_PACKAGE = "loadmaster_packages"
"""Under this name transformers finds the flash-attn package's stand-in (``quirks``)."""

FIELDS: dict[str, str] = {
    "task": "train and finetune: steps; infer: a prompt, then tokens; serve is refused",
    "method": "full; lora through PEFT; qlora on stand-ins of bitsandbytes' layers",
    "precision": "weights, torch.autocast, float32 copies and gradient buffers as they are said",
    "micro_batch": "rows of the batch",
    "seq_len": "columns of the batch",
    "grad_accumulation": "two micro-batches are run where there are more: later ones repeat the second",
    "eval_batch": "a batch without gradients after the last step",
    "optimizer": "torch's and transformers' own, stand-ins for other packages' (optimizers, states)",
    "checkpointing": "transformers' switch; every:K by layer; selective by torch's selective policy",
    "attention": "eager, sdpa and its kernels by name, flash2 as a stand-in; flash3 and flex are refused",
    "loss": "the class's own, native, chunked; fused and cut as stand-ins",
    "loss_chunks": "of the chunked loss",
    "lora": "PEFT's LoraConfig; DoRA on packed weights is refused",
    "quantization": "nf4, fp4, int8; others are refused",
    "frozen": "requires_grad_(False)",
    "new_tokens": "the last two of them are generated, beside a cache of the final length",
    "prefill_chunk": "the prompt in parts",
    "logits": "logits_to_keep where the class has it",
    "kv_dtype": "refused unless it is the compute format",
    "kv_cache": "use_cache",
    "memory_utilization": "a server's; nothing else reads it",
    "max_sequences": "a server's; nothing else reads it",
    "layout": "one device here; several by layouts",
    "loader": "host memory: nothing of it is on the device",
    "framework": "versions",
    "compile": "refused: inductor's memory plan isn't run",
    "offload": "optimizer, gradients and activations leave the device as they are said",
    "optimizer_in_backward": "each parameter's own optimizer in a hook",
    "images": "pictures of each sequence",
    "source_len": "the encoder's tokens; of Qwen-VL the patches of a sequence's pictures",
    "outputs_held": "the loop keeps the outputs, and the cache in them",
}
"""Every field of Job, with what a dry run does about it."""


def check(job: Job) -> tuple[str, ...]:
    """Notes for the report; raises BadValueError for a field that a dry run can't do."""
    for field, value, expected in _refused(job):
        raise BadValueError(field, value, expected)
    notes = []
    if job.training and job.grad_accumulation > 2:
        notes.append(f"2 of {job.grad_accumulation} micro-batches were run: the others repeat the second")
    if not job.training and job.new_tokens > 2:
        notes.append(
            f"the last 2 of {job.new_tokens} tokens were generated, beside a cache of the final length"
        )
    if job.attention == "flash2":
        notes.append("flash-attn's kernels are a stand-in with the same tensors")
    return tuple(notes)


def _refused(job: Job) -> list[tuple[str, object, str]]:
    found: list[tuple[str, object, str]] = []
    if job.task == "serve":
        found.append(("task", job.task, "train, finetune or infer: a dry run runs PyTorch code, no server"))
    if job.compile:
        found.append(("compile", True, "no compile: a dry run can't run inductor's memory plan"))
    if job.attention in ("flex", "flash3"):
        expected = "sdpa, eager, flash, efficient, math or flash2: of other kernels a dry run has no stand-in"
        found.append(("attention", job.attention, expected))
    if job.kv_dtype is not None and not job.training and job.kv_dtype != job.compute_dtype:
        expected = f"{job.compute_dtype}, the compute format: a dry run has no quantised cache"
        found.append(("kv_dtype", job.kv_dtype, expected))
    if job.lora is not None and job.lora.dora and job.quantization is not None:
        found.append(("dora", True, "no dora on packed weights in a dry run"))
    if job.optimizer_in_backward and (job.precision.master is not None or job.grad_accumulation > 1):
        expected = "no optimizer_in_backward with float32 copies or accumulated gradients"
        found.append(("optimizer_in_backward", True, expected))
    if "activations" in job.offload and job.checkpointing == "none":
        found.append(("offload", "activations", "activations only of checkpointed layers"))
    if job.precision.master is not None and job.offload:
        found.append(("offload", ",".join(job.offload), "no offload with float32 copies in a dry run"))
    return found


def kernel(job: Job) -> str | None:
    """The kernel of scaled_dot_product_attention that the job asks for by name."""
    return job.attention if job.attention in KERNELS else None


def attention(job: Job) -> str:
    """transformers' name of the implementation of attention."""
    return {"eager": "eager", "flash2": FLASH_PACKAGE}.get(job.attention, "sdpa")
