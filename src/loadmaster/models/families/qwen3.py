"""Qwen 3: no biases, and an RMS norm on every head of queries and keys."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, switched


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/qwen3/modeling_qwen3.py)."""
    of = shape(config, head_dim=config.count("head_dim", default=128))
    order, size = switched(config, of.layers)
    bias = config.flag("attention_bias", default=False)
    config.ignore("qk_norm")
    kinds = {
        name: Block(
            name=name,
            mixer=attention(of, qkv_bias=bias, out_bias=bias, window=seen, **head_norms(of)),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=pre_norms(of.hidden),
        )
        for name, seen in ((FULL, None), (SLIDING, size))
    }
    return decoder(config, of, kinds, order, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
