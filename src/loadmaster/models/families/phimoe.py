"""Phi-3.5-MoE: Mixtral's experts, LayerNorm, biases on attention and head."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, layer_norm, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/phimoe/modeling_phimoe.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    moe = experts(
        of.hidden,
        of.width,
        of.activation,
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        router="router",
        router_derived=True,
    )
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, window=window(config, None)),
        feedforward=moe,
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", of.hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)),
        ),
    )
    head_bias = config.flag("lm_head_bias", default=False)
    final = layer_norm(f"{root}.norm", of.hidden)
    return decoder(config, of, block, root=root, head=head, head_bias=head_bias, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
