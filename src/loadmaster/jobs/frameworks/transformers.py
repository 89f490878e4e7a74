"""Hugging Face transformers, with PEFT and bitsandbytes beside it.

Sources: pull requests 31292 (4.45: generate no longer upcasts all logits), 33902 (4.46: ``logits.float()`` left the models),
30536 and 30716 (4.42: DynamicCache instead of tuples in generate), 29109 (4.39: rotary tables computed when needed, model by
model until 4.43), 36982 (4.51: SDPA gets grouped heads, integrations/sdpa_attention.py use_gqa_in_sdpa); trainer.py (with
bitsandbytes, nn.Embedding is overridden to optim_bits 32); modeling_mixtral.py of 4.57 and 5.0 (ModuleList of experts, then
3-D gate_up_proj and down_proj). PEFT is taken to be of the same day: 0.20 (July 2026, between 5.14 and 5.15) is the first that
resolves all-linear against models of transformers 5 (huggingface/peft#3232).
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "transformers"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What a version does; None: 5."""
    newest = version is None or version == (5,)
    version = version or (5,)
    return Facts(
        wide_embedding_states=True,
        upcast_logits=version < (4, 45),
        cache="tuple" if version < (4, 42) else "dynamic",
        rotary_tables="per layer" if version < (4, 43) else "shared",
        repeats_kv=version < (4, 51),
        saves_quantised_input=version < (4, 40),
        math_in_float32=version >= (4, 46),
        stacked_experts=version >= (5,),
        packs_derived=version < (5,),
        adapts_experts=version == (5,) or version >= (5, 15),
        # huggingface/transformers#47014, of July 2026; seen in 5.24.
        ties_always=version >= (5,),
        biases_sdpa=newest or version >= (5, 24),
        fp8_unties_head=version < (5,),
        gptq_kernel="exllama" if version < (4, 49) else "marlin",
        gptq_other_kernel="torch" if version < (4, 49) else "marlin",
    )
