"""OLMo 1: Llama's layer with LayerNorm that has no parameters."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, layer_norm, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/olmo/modeling_olmo.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)

    def norm(name: str) -> Norm:
        return layer_norm(name, of.hidden, weight=False, bias=False)

    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, clip_qkv=config.has("clip_qkv")),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=(("pre_mixer", norm("input_layernorm")), ("pre_feedforward", norm("post_attention_layernorm"))),
    )
    return decoder(config, of, block, root=root, head=head, final=norm(f"{root}.norm"))


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
