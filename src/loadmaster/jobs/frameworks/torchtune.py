"""torchtune: keys and values are expanded to all heads before SDPA (torchtune/modules/attention.py), PEFT-like LoRA."""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "torchtune"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What every version read so far does."""
    return Facts(repeats_kv=True)
