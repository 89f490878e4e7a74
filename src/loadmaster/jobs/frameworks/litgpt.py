"""LitGPT: its own model code on Lightning Fabric.

Sources: litgpt/model.py (lm_head is never tied; keys and values repeated to all heads), litgpt/lora.py (one adapter for the
fused query-key-value matrix, zero-padded), litgpt/finetune/lora.py (the ``logits`` variable lives through backward),
lightning fabric plugins/precision/half.py convert_output (logits to float32) and bitsandbytes.py (every Linear is packed from
float16, the head too; bitsandbytes 0.41 keeps the input of its 4-bit product).
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "litgpt"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What a version does; before 0.5 (October 2024) it ran on torch without pytorch/pytorch#128922."""
    return Facts(
        math_in_float32=version is None or version >= (0, 5),
        repeats_kv=True,
        native_activations=True,
        cache="static",
        head_tied=False,
        lora="litgpt",
        quantises_head=True,
        packs_derived=True,
        unpacks_as="float16",
        saves_quantised_input=True,
        logits_held="float32",
    )
