"""What nf4 and fp4 of bitsandbytes share: two values a byte, a scale a block, and the scales packed again."""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

CODES = 256
"""Values of an 8-bit code table (bitsandbytes functional.create_dynamic_map)."""
SOURCE = (
    "bitsandbytes functional.quantize_4bit: two values a byte, a float32 absmax per block; with double quantisation "
    "8-bit absmax plus a float32 per 256 of them (arXiv:2305.14314 §3)"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Packed values and the quant_state's tensors."""
    scales = ceil_div(matrix.values, quantization.block)
    one = rounded(ceil_div(matrix.values, 2))
    if quantization.double:
        # quant_state: absmax (uint8), its own absmax (float32 per 256), code (256 float32), nf4 code (16), offset.
        one = one + rounded(scales) + rounded(4 * ceil_div(scales, 256)) + 4 * CODES + 512 + 512
    else:
        one = one + rounded(4 * scales) + 512
    return int(one) * matrix.count
