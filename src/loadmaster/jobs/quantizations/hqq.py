"""HQQ (mobiusml): values of 1 to 8 bits in bytes, and a scale and a zero in the compute format for each group."""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "hqq"
TEXT = "HQQ"
BITS, CHOICES, GROUP = 4, (1, 2, 3, 4, 8), 64
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS = ("forward", "backward")
ON_LOAD = TRAINABLE = True
UPCASTS = False
SOURCE = (
    "hqq/core/quantize.py HQQLinear and bitpack.py: 4 bits two a byte, 2 bits four, 1 bit eight, 3 bits ten in an int32; meta "
    "scale and zero in the compute format, one for each group_size values; the PyTorch backend unpacks the matrix"
)


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values, scales and zeros."""
    bits, groups = quantization.bits, ceil_div(matrix.values, quantization.block)
    values = 4 * ceil_div(matrix.values, 10) if bits == 3 else ceil_div(matrix.values * bits, 8)
    return int(rounded(values) + 2 * rounded(2 * groups)) * matrix.count
