"""Qwen 3 mixtures of experts: Qwen 3's attention, routed experts, none shared."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, gated_mlp, head_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.qwen2_moe import blocks, order, sparse
from loadmaster.models.spec import Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/qwen3_moe/modeling_qwen3_moe.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    size = window(config, 4096) if config.flag("use_sliding_window", default=False) else None
    config.ignore("sliding_window", "qk_norm")
    moe = experts(
        of.hidden,
        config.count("moe_intermediate_size"),
        of.activation,
        count=config.count("num_experts", "num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
    )
    mixer = attention(of, qkv_bias=bias, out_bias=bias, window=size, **head_norms(of))
    table = blocks(
        {FULL: mixer}, {True: moe, False: gated_mlp(of.hidden, of.width, of.activation)}, of.hidden
    )
    kinds = order([FULL] * of.layers, sparse(config, of.layers))
    return decoder(config, of, table, kinds, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
