"""scaled_dot_product_attention as CUDA runs it: which kernel, and what is done before it is called.

Mirrors attention.cpp (scaled_dot_product_attention) and cuda/sdp_utils.cpp (use_flash_attention, use_mem_efficient_attention)
in aten/src/ATen/native/transformers of torch 2.6 to 2.13. cuDNN's kernel, which some versions prefer on Hopper,
keeps the same tensors as flash attention.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
SDPA = aten.scaled_dot_product_attention.default
HALVES = (torch.float16, torch.bfloat16)
LARGEST_FLASH_HEAD = 256


class Chooser:
    """The choice on a card of one compute capability; ``forced`` is a kernel that the job asks for by name."""

    def __init__(self, capability: tuple[int, int], forced: str | None = None) -> None:
        self.capability, self.forced = capability, forced
        self.chosen: dict[str, int] = {}

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """The output, through the chosen kernel's own operator, so that autograd keeps what it keeps on CUDA."""
        kind = self.kernel(query, key, value, attn_mask, enable_gqa)
        self.chosen[kind] = self.chosen.get(kind, 0) + 1
        if kind == "flash":
            size = query.shape[-1]
            factor = scale if scale is not None else size**-0.5
            query, key, value = (_padded(x) for x in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=factor
            )[0]
            return out if out.shape[-1] == size else out[..., :size]
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # convert_boolean_attn_mask: a tensor of the query's type, minus infinity where the mask is false.
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), -torch.inf
            )
        if kind == "efficient":
            if attn_mask is not None:
                attn_mask = _aligned(attn_mask).expand(*query.shape[:2], query.shape[2], key.shape[2])
            needs = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, needs, dropout_p, is_causal, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    def kernel(self, query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool) -> str:
        """``flash``, ``efficient`` or ``math``, in this order where their conditions hold."""
        if self.forced is not None:
            return self.forced
        allowed = torch.backends.cuda
        if query.dim() != 4 or query.dtype not in (*HALVES, torch.float32):
            return "math"
        if query.dtype == torch.bfloat16 and self.capability < (8, 0):
            return "math"
        heads = {x.shape[1] for x in (query, key, value)}
        if len(heads) > 1 and not enable_gqa:
            return "math"
        if not all(x.stride(-1) == 1 for x in (query, key, value)) or 0 in query.shape or 0 in key.shape:
            return "math"
        if allowed.flash_sdp_enabled() and self._flash(query, key, value, mask):
            return "flash"
        if allowed.mem_efficient_sdp_enabled() and len(heads) == 1:
            return "efficient"
        return "math"

    def _flash(self, query: Any, key: Any, value: Any, mask: Any) -> bool:
        size = query.shape[-1]
        return (
            mask is None
            and self.capability >= (8, 0)
            and query.dtype in HALVES
            and size == key.shape[-1] == value.shape[-1]
            and size <= LARGEST_FLASH_HEAD
        )


def _padded(x: Any) -> Any:
    """pad_last_dim<8>: flash attention's heads are multiples of eight."""
    rest = -x.shape[-1] % 8
    return torch.nn.functional.pad(x, [0, rest]) if rest else x


def _aligned(mask: Any) -> Any:
    """pad_bias<16>: rows of the mask begin at multiples of 16 elements."""
    rest = -mask.shape[-1] % 16
    return torch.nn.functional.pad(mask, [0, rest])[..., : mask.shape[-1]] if rest else mask
