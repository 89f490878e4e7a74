"""MXFP4 checkpoints (gpt-oss): the stacked experts in 4-bit floats, with an 8-bit exponent for every 32 values."""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "mxfp4"
TEXT = "4-bit microscaling floats, experts alone"
BITS, CHOICES, GROUP = 4, (4,), None
VARIANTS: tuple[str, ...] = ()
PACKS = ("experts",)
UNPACKS: tuple[str, ...] = ()
ON_LOAD = UPCASTS = TRAINABLE = False
SOURCE = (
    "OCP Microscaling Formats v1.0 §5.2: blocks of 32 E2M1 values with an E8M0 scale; gpt-oss model card §2.1: 90 % of the "
    "values, those of the experts, in 4.25 bits; transformers integrations/mxfp4.py blocks and scales"
)
BLOCK = 32


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Blocks and scales."""
    blocks = matrix.stack * matrix.outputs * ceil_div(matrix.inputs, BLOCK)
    return int(rounded(ceil_div(matrix.values, 2)) + rounded(blocks)) * matrix.count
