"""AWQ checkpoints (arXiv:2306.00978) as AutoAWQ holds them: 4 bits packed in int32, and for each group of inputs a float16
scale and a packed zero an output.

``gemm`` unpacks a matrix for more than 1023 tokens and else sums eight partial products; ``gemm_split`` always sums them
(AutoAWQ before 0.1.8); ``gemv`` pads groups to whole words.
"""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, rounded, where
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "awq"
TEXT = "AWQ"
BITS, CHOICES, GROUP = 4, (4,), 128
VARIANTS = ("gemm", "gemm_split", "gemv")
PACKS = ("layer", "experts")
UNPACKS: tuple[str, ...] = ("backward",)
ON_LOAD = UPCASTS = False
TRAINABLE = True
SOURCE = (
    "awq/modules/linear/gemm.py WQLinear_GEMM: qweight int32 inputs × outputs / 8, qzeros groups × outputs / 8, scales float16 "
    "groups × outputs; WQLinearMMFunction.forward: from 1024 tokens on the matrix is unpacked to float16, below "
    "gemm_forward_cuda makes 8 partial products (split_k_iters) and sums them"
)
MANY, SPLITS = 1023, 8


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """qweight, qzeros and scales."""
    groups = ceil_div(matrix.inputs, min(quantization.block, matrix.inputs))
    zeros = 4 * matrix.outputs * groups // 8
    if quantization.variant == "gemv":
        words = ceil_div(groups, 8)
        words = ceil_div(words, max(1, 128 // quantization.block)) * max(1, 128 // quantization.block)
        zeros, groups = 4 * matrix.outputs * words, 8 * words
    one = rounded(matrix.values // 2) + rounded(zeros * matrix.stack)
    return int(one + rounded(2 * groups * matrix.outputs * matrix.stack)) * matrix.count


def scratch_bytes(inputs: int, outputs: int, rows: Size, quantization: Quantization) -> Size:
    """The unpacked matrix for many tokens, else the partial products."""
    partial = 2 * SPLITS * rows * outputs
    if quantization.variant != "gemm":
        return partial
    return where(rows > MANY, 0 * rows + 2 * inputs * outputs, partial)
