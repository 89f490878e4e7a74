"""torchao's int4 weight-only (tinygemm): two values a byte, and a bfloat16 scale and zero for each group of inputs."""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "int4_weight_only"
TEXT = "torchao int4, weights alone"
BITS, CHOICES, GROUP = 4, (4,), 128
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS: tuple[str, ...] = ("backward",)
ON_LOAD = True
TRAINABLE = UPCASTS = False
SOURCE = (
    "torchao quantization/quant_api.py Int4WeightOnlyConfig (group_size 128) and aten _weight_int4pack_mm: scales_and_zeros "
    "bfloat16 groups × outputs × 2; the kernel reads packed weights"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values, scales and zeros."""
    groups = ceil_div(matrix.inputs, min(quantization.block, matrix.inputs))
    scales = rounded(4 * groups * matrix.outputs * matrix.stack)
    return int(rounded(ceil_div(matrix.values, 2)) + scales) * matrix.count
