"""8-bit floats (arXiv:2209.05433), a checkpoint's or made on loading: a byte a value and a float32 scale for each block of
128 × 128 values (DeepSeek-V3, Qwen3), each row, or the whole tensor."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "fp8"
TEXT = "8-bit floats"
BITS, CHOICES, GROUP = 8, (8,), None
VARIANTS = ("block", "row", "tensor")
PACKS = ("layer", "experts")
UNPACKS: tuple[str, ...] = ("backward",)
ON_LOAD = UPCASTS = TRAINABLE = False
SOURCE = (
    "transformers integrations/finegrained_fp8.py FP8Linear: weight float8_e4m3fn, weight_scale_inv float32 a block of "
    "128 × 128 (arXiv:2412.19437 §3.3.2); act_quant makes the input float8 with a float32 for each 128 values of a row"
)
BLOCK = 128


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values and scales."""
    scales = 1
    if quantization.variant == "block":
        scales = int(ceil_div(matrix.outputs, BLOCK) * ceil_div(matrix.inputs, BLOCK))
    elif quantization.variant == "row":
        scales = matrix.outputs
    return int(rounded(matrix.values) + rounded(4 * scales * matrix.stack)) * matrix.count


def scratch_bytes(inputs: int, outputs: int, rows: Size, quantization: Quantization) -> Size:
    """The input in 8 bits with its scales."""
    return rows * (inputs + 4 * ceil_div(inputs, BLOCK))
