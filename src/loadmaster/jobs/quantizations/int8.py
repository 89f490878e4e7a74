"""LLM.int8() of bitsandbytes (Linear8bitLt, arXiv:2208.07339): a byte a value and one float32 statistic an output row."""

from __future__ import annotations

from loadmaster.arrays import Size, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "int8"
TEXT = "bitsandbytes LLM.int8()"
BITS, CHOICES, GROUP = 8, (8,), None
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS = ("backward",)
ON_LOAD = TRAINABLE = UPCASTS = EXACT = True
SOURCE = (
    "bitsandbytes nn/modules.py Int8Params.cuda: CB int8 and SCB, a float32 an output row; autograd/_functions.py "
    "MatMul8bitLt: forward quantises the input and multiplies in int8 to int32, backward makes CB in the compute format"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """CB and SCB."""
    return int(rounded(matrix.values) + rounded(4 * matrix.stack * matrix.outputs)) * matrix.count


def scratch_bytes(inputs: int, outputs: int, rows: Size, quantization: Quantization) -> Size:
    """The int8 input with its row statistics, and the int32 product before it is scaled."""
    return rows * inputs + 4 * rows + 4 * rows * outputs
