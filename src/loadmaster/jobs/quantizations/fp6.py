"""6-bit floats (FP6-LLM, arXiv:2401.14112) as torchao's fpx_weight_only holds them: three quarters of a byte a value."""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "fp6"
TEXT = "torchao 6-bit floats"
BITS, CHOICES, GROUP = 6, (6,), None
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS: tuple[str, ...] = ("backward",)
ON_LOAD = True
TRAINABLE = UPCASTS = False
SOURCE = "torchao dtypes/floatx: to_scaled_tc_floatx packs 6 bits a value, a float16 scale an output row"


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Values and scales."""
    return (
        int(rounded(ceil_div(matrix.values * 6, 8)) + rounded(2 * matrix.stack * matrix.outputs))
        * matrix.count
    )
