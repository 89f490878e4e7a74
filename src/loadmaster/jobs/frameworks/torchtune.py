"""torchtune: keys and values are expanded to all heads before SDPA (torchtune/modules/attention.py); its recipes' AdamW is
fused (recipes/configs, for example llama3_1/8B_lora_single_device.yaml: ``fused: True``)."""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "torchtune"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What every version read so far does."""
    return Facts(native_activations=True, repeats_kv=True, optimizer_implementation="fused")
