"""Older versions of transformers on the code of the installed one: what ``jobs/frameworks`` says they did otherwise.

A dry run runs the library that is installed. A job may name another version; what of memory is known to differ is done to the
model or to the library for the time of the session, and what can't be is refused in a sentence.
"""

from __future__ import annotations

from typing import Any

from loadmaster.errors import BadValueError
from loadmaster.jobs.frameworks import Facts, facts
from loadmaster.jobs.job import Job

RUN_HERE = ("transformers", "torchao")
"""Frameworks whose programs are transformers' models in plain PyTorch loops."""


def check(job: Job) -> None:
    """Raises BadValueError for a library whose code isn't run here."""
    name = job.framework.split()[0].lower()
    if name not in RUN_HERE:
        raise BadValueError(
            "framework",
            job.framework,
            "transformers: a dry run runs its code (or your own: build(), a script)",
        )


def adapt(model: Any, job: Job) -> None:
    """Change a model on the meta device into what an older version built. Raises BadValueError for what can't be."""
    wanted, here = job.facts, facts("transformers")
    if wanted.stacked_experts != here.stacked_experts and _has_stacked_experts(model):
        _experts(model, job)
    if wanted.rotary_tables == "per layer":
        _rotary_tables(model)
    if wanted.upcast_logits and hasattr(model, "get_output_embeddings"):
        head = model.get_output_embeddings()
        if head is not None:
            head.register_forward_hook(lambda _module, _inputs, output: output.float())


def patch(patches: Any, job: Job) -> None:
    """Change the library, and torch's settings, for the time of a session."""
    wanted: Facts = job.facts
    if wanted.repeats_kv:
        from transformers.integrations import sdpa_attention

        if hasattr(sdpa_attention, "use_gqa_in_sdpa"):
            patches.set(sdpa_attention, "use_gqa_in_sdpa", lambda *_, **__: False)
    if not wanted.math_in_float32:
        patches.set(_Math(), "in_halves", True)


class _Math:
    """``torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp`` as an attribute that can be set and put back."""

    __slots__ = ()

    @property
    def in_halves(self) -> bool:
        """Whether the written-out attention works in 16 bits."""
        import torch

        return bool(torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed())

    @in_halves.setter
    def in_halves(self, value: bool) -> None:
        import torch

        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(value)


def _experts(model: Any, job: Job) -> None:
    """Experts that were modules of their own ran one after the other, as the stacked ones do in their eager form: the same in
    inference. Gradients and packing know a module from a slice."""
    if job.training or job.quantization is not None or not hasattr(model, "set_experts_implementation"):
        raise BadValueError(
            "framework",
            job.framework,
            "transformers 5 for this model: its experts were modules of their own before",
        )
    model.set_experts_implementation("eager")


def _has_stacked_experts(model: Any) -> bool:
    return any(param.dim() == 3 and "expert" in name for name, param in model.named_parameters())


def _rotary_tables(model: Any) -> None:
    """cos_cached and sin_cached of every position in each layer (LlamaRotaryEmbedding before 4.43), in the weights' format."""
    import torch

    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    positions = getattr(config, "max_position_embeddings", None)
    rotary = any("rotary" in name for name, _ in model.named_modules())
    if not heads or not positions or not rotary:
        return
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    size = int(size * getattr(config, "partial_rotary_factor", 1.0))
    dtype = next(model.parameters()).dtype
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            for name in ("cos_cached", "sin_cached"):
                table = torch.empty(positions, size, dtype=dtype, device="meta")
                module.register_buffer(name, table, persistent=False)
