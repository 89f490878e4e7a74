"""Seed-OSS: Llama's layer with biases on query, key and value, and one on the output if the config says so."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/seed_oss/modeling_seed_oss.py)."""
    of = shape(config, head_dim=config.count("head_dim", default=128))
    block = Block(
        mixer=attention(
            of,
            qkv_bias=config.flag("attention_bias", default=True),
            out_bias=config.flag("attention_out_bias", default=False),
        ),
        feedforward=gated_mlp(
            of.hidden, of.width, of.activation, bias=config.flag("mlp_bias", default=False)
        ),
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
