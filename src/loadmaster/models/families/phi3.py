"""Phi-3, Phi-3.5 and Phi-4: Llama's layer with query-key-value fused, gate and up fused."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, fused_gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/phi3/modeling_phi3.py)."""
    of = shape(config)
    config.ignore("attention_bias")
    block = Block(
        mixer=fused_attention(of, window=window(config, None), rotary_dim=rotary_dim(config, of.head_dim)),
        feedforward=fused_gated_mlp(of.hidden, of.width, of.activation),
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
