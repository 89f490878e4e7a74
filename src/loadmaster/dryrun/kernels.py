"""Operators that CUDA has a kernel of its own for, and what such kernels take from the allocator while they run.

A build without CUDA takes an operator apart that has a composite form beside its CUDA kernel, with temporaries that a GPU never
sees: ``WHOLE`` are those (native_functions.yaml: an entry for CUDA beside CompositeImplicitAutograd; a test reads the
file). ``SCRATCH`` is memory that kernels ask the allocator for and give back before they return, from their sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

WHOLE: set[Any] = {
    getattr(aten, name).default
    for name in ("silu_backward", "mish_backward", "_fused_rms_norm")
    if hasattr(aten, name)
}
MATMULS: set[Any] = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten._scaled_mm.default,
}  # fmt: skip
"""Operators that run on cuBLAS."""

Scratch = Callable[[Any, Any, Any], "list[int]"]

_composite: dict[Any, bool] = {}


def is_composite(func: Any) -> bool:
    """Whether an operator is only made of others, also on CUDA (CompositeImplicitAutograd)."""
    found = _composite.get(func)
    if found is None:
        found = (
            isinstance(func, torch._ops.OpOverload)
            and func not in WHOLE
            and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
            and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CUDA)
        )
        _composite[func] = found
    return found


def _flash_backward(args: Any, _: Any, __: Any) -> list[int]:
    """flash_api.cpp mha_bwd: softmax_d and dq_accum in float32; of grouped heads dk and dv of all query heads first."""
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    found = [batch * heads * rounded * 4, batch * heads * rounded * size * 4]
    if key.shape[1] != heads:
        found += [batch * heads * key.shape[2] * size * key.element_size()] * 2
    return found


def _efficient_backward(args: Any, _: Any, __: Any) -> list[int]:
    """attention_backward.cu _efficient_attention_backward: delta, and gradients in float32 where 16-bit ones are summed."""
    query = args[1]
    batch, heads, length, size = query.shape
    return [batch * heads * length * 4] + (
        [batch * heads * length * size * 4] if query.dtype != torch.float32 else []
    )


def _sorted(args: Any, _: Any, out: Any) -> list[int]:
    """Sort.cpp, cub: keys and indices once more."""
    values = args[0]
    return [values.numel() * values.element_size(), values.numel() * 8]


def _scan(args: Any, _: Any, out: Any) -> list[int]:
    """ScanUtils.cuh, cub::DeviceScan: a few kilobytes."""
    return [args[0].numel() // (SCAN_THREADS * SCAN_ITEMS) * 8 + 512]


SCAN_THREADS, SCAN_ITEMS = 256, 4
"""Of a block of cub's scan, and elements of each."""
SMALL_EMBEDDING = 3072
"""Indices up to which Embedding.cu sorts nothing."""


def _embedding_backward(args: Any, _: Any, out: Any) -> list[int]:
    """Embedding.cu embedding_dense_backward_cuda: beyond 3072 indices they are sorted (indices and places, twice with cub's own
    copies), and EmbeddingBackwardKernel.cu adds up parts of equal tokens in float32: offsets, and a row of the width for each
    part. Parts are at most as many as tokens, and so many if all tokens differ."""
    count, width = args[1].numel(), out.shape[-1]
    if count <= SMALL_EMBEDDING:
        return []
    parts = min(count, out.shape[0])
    return [count * 8] * 4 + [count * 4] * 3 + [parts * -(-width // 32) * 32 * 4]


def _grouped_mm(
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """GroupedMMUtils.h create_grouped_gemm_output_tensor: rows of the output begin at multiples of 16 bytes. Every floating
    type, where torch's own shape function takes bfloat16 only (other types run group by group, in the same output)."""
    groups = offs.shape[0] if offs is not None else 0
    if one.dim() == 2:
        shape = (
            [groups, one.shape[0], other.shape[1]] if other.dim() == 2 else [one.shape[0], other.shape[-1]]
        )
    else:
        shape = (
            [one.shape[1], other.shape[1]]
            if other.dim() == 2
            else [one.shape[0], one.shape[1], other.shape[-1]]
        )
    kind = out_dtype or one.dtype
    per_row = 16 // kind.itemsize
    padded = -(-shape[-1] // per_row) * per_row
    strides = [padded, 1] if len(shape) == 2 else [shape[1] * padded, padded, 1]
    return torch.empty_strided(shape, strides, dtype=kind, device=one.device)


def _safe_softmax(args: Any, _: Any, __: Any) -> list[int]:
    """SoftMax.cpp _safe_softmax, behind the result: which values are minus infinity, and which rows are that alone, as bools."""
    scores = args[0]
    return [scores.numel(), scores.numel() // max(scores.shape[-1], 1)]


REPLACED: dict[Any, Callable[..., Any]] = {}
"""Operators that run as something else here; a session adds scaled_dot_product_attention."""
if hasattr(aten, "_grouped_mm"):
    REPLACED[aten._grouped_mm.default] = _grouped_mm

SCRATCH: dict[Any, Scratch] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.sort.default: _sorted,
    aten.sort.stable: _sorted,
    aten.argsort.default: _sorted,
    aten.topk.default: _scan,
    aten.cumsum.default: _scan,
    aten.embedding_dense_backward.default: _embedding_backward,
}
