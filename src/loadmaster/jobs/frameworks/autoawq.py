"""AutoAWQ with fused modules, on transformers' models.

Sources: awq/modules/fused/attn.py QuantAttentionFused (the cache is made on loading for ``max_new_tokens`` of a batch; scores
of a whole prompt, a float32 copy of them and their softmax, keys and values repeated to all heads), awq/models/mistral.py
MistralFuser (the fuser holds the old attention modules until all are replaced, so query, key and value are there twice),
awq/modules/linear.py (before 0.1.8 always gemm_forward_cuda's eight partial products); logits of all positions in float32, as
transformers did.
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "autoawq"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What a version does; None: the last, 0.2.9."""
    version = version or (0, 2, 9)
    old = version < (0, 1, 8)
    return Facts(
        upcast_logits=version < (0, 2, 6),
        cache="generated" if old else "static",
        rotary_tables="complex" if old else "shared",
        repeats_kv=True,
        fused_attention=True,
        attention="eager",
        float_scores=True,
        awq_kernel="gemm_split" if old else "gemm",
    )
