"""OLMoE: norms on all queries and keys at once, many small experts, none shared."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, head_norms, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/olmoe/modeling_olmoe.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    moe = experts(
        of.hidden,
        of.width,
        of.activation,
        count=config.count("num_experts", "num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
    )
    clip = config.has("clip_qkv")
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, clip_qkv=clip, **head_norms(of, whole=True)),
        feedforward=moe,
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
