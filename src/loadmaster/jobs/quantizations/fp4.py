"""FP4 of bitsandbytes (Linear4bit, arXiv:2305.14314 §3): Linear layers but the head are packed on loading."""

from __future__ import annotations

from loadmaster.jobs.quantizations import _bitsandbytes

NAME = "fp4"
TEXT = "bitsandbytes 4-bit (fp4)"
BITS, CHOICES, GROUP = 4, (4,), 64
VARIANTS: tuple[str, ...] = ()
PACKS = ("layer", "router", "tower")
UNPACKS = ("forward", "backward")
ON_LOAD = TRAINABLE = UPCASTS = EXACT = True
SOURCE = _bitsandbytes.SOURCE

packed_bytes = _bitsandbytes.packed_bytes
