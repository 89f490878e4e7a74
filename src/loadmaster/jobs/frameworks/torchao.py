"""Plain PyTorch loops with torchao's optimizers, as its benchmarks/benchmark_low_bit_adam.py: AdamW is fused."""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "torchao"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What every version read so far does."""
    return Facts(native_activations=True, optimizer_implementation="fused")
