"""torchao's int8 weight-only: a byte a value, and a float32 scale and an int8 zero an output row."""

from __future__ import annotations

from loadmaster.arrays import rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "int8_weight_only"
TEXT = "torchao int8, weights alone"
BITS, CHOICES, GROUP = 8, (8,), None
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS = ("forward", "backward")
ON_LOAD = TRAINABLE = True
UPCASTS = False
SOURCE = (
    "torchao quantization/quant_api.py Int8WeightOnlyConfig, 0.18: Int8Tensor of qdata, scale and zero_point an output row; the "
    "product casts the packed weight to the input's format (compiled: inside the kernel)"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values, scales and zeros."""
    rows = matrix.stack * matrix.outputs
    return int(rounded(matrix.values) + rounded(4 * rows) + rounded(rows)) * matrix.count
