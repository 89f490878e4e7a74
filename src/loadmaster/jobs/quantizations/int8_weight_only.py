"""torchao's int8 weight-only: a byte a value and a scale an output row in the format it was packed from."""

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
    "torchao quantization/quant_api.py Int8WeightOnlyConfig: symmetric, one scale an output row; the product casts the packed "
    "weight to the input's format (compiled: inside the kernel)"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values and scales of 2 bytes."""
    return int(rounded(matrix.values) + rounded(2 * matrix.stack * matrix.outputs)) * matrix.count
