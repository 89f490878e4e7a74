"""InternLM 3: Llama's layer, with one switch for the biases of query, key, value and another for the rest."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_internlm3.py)."""
    of = shape(config)
    bias = config.flag("bias", default=False)
    config.ignore("attention_bias", "mlp_bias")
    block = Block(
        mixer=attention(of, qkv_bias=config.flag("qkv_bias", default=False), out_bias=bias),
        feedforward=gated_mlp(of.hidden, of.width, of.activation, bias=bias),
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
