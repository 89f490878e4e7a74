"""DeepSeek-MoE 16B: Llama's attention, experts in a list of modules, shared experts, the first layers dense."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.deepseek_v2 import dense_first, routed
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.records import replace


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_deepseek.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    mixer = attention(of, qkv_bias=bias, out_bias=bias)
    dense = gated_mlp(of.hidden, of.width, of.activation)
    moe = routed(config, of, shared=None)
    one = gated_mlp(of.hidden, moe.expert.width, of.activation, prefix="mlp.experts.{}")
    moe = replace(moe, expert=one, stacked=False)
    kinds = {
        "dense": Block(name="dense", mixer=mixer, feedforward=dense, norms=pre_norms(of.hidden)),
        "experts": Block(name="experts", mixer=mixer, feedforward=moe, norms=pre_norms(of.hidden)),
    }
    return decoder(config, of, kinds, dense_first(config, of.layers, 0), root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
