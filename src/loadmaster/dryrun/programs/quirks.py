"""What libraries do on fake tensors and wouldn't do on a GPU, put right for the time of a session; and kernels of packages that
transformers looks up by name."""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.programs.honoured import FLASH_PACKAGE
from loadmaster.dryrun.tensors import Patches

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def apply(patches: Patches, kernel: str | None = None) -> None:
    """transformers' masks: a fake tensor isn't a trace (``is_tracing`` looks for FakeTensor), and no sequences are packed.
    ``kernel``: of scaled_dot_product_attention, by name; the memory-efficient one has no grouped heads."""
    try:
        from transformers import masking_utils, modeling_outputs
        from transformers.integrations import sdpa_attention
    except ImportError:
        return
    for name, answer in {"is_tracing": _never, "find_packed_sequence_indices": _none}.items():
        if hasattr(masking_utils, name):
            patches.set(masking_utils, name, answer)
    outputs: Any = modeling_outputs.MoeCausalLMOutputWithPast
    if not hasattr(outputs, "image_outputs"):
        # Llama4ForConditionalGeneration of 5.24 asks its language model's outputs for pictures, which they don't have.
        patches.set(outputs, "image_outputs", None)
    if kernel == "efficient" and hasattr(sdpa_attention, "use_gqa_in_sdpa"):
        patches.set(sdpa_attention, "use_gqa_in_sdpa", _never)


def register_flash() -> None:
    """Let transformers find the flash-attn package's stand-in, before a model is built with it."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(FLASH_PACKAGE, _flash)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH_PACKAGE, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


def _flash(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **_: Any,
) -> tuple[Any, None]:  # fmt: skip
    """flash_attn_func: grouped heads as they are, no mask; float32 operands are cast first (modeling_flash_attention_utils)."""
    if query.dtype not in HALVES:
        target = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.bfloat16
        query, key, value = (each.to(target) for each in (query, key, value))
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, bool(causal) and query.shape[2] > 1, False, scale=scaling
    )[0]
    return out.transpose(1, 2), None


def _never(*_: Any, **__: Any) -> bool:
    return False


def _none(*_: Any, **__: Any) -> None:
    return None
