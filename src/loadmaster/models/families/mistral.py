"""Mistral 7B, Nemo, Small 3, Large 2: Llama's layer, with a sliding window in the first version."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import window

DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
"""What MistralConfig of transformers 5 fills in: a model that nests this one may leave fields out."""


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/mistral/modeling_mistral.py)."""
    of = shape(config)
    block = Block(
        mixer=attention(of, window=window(config, 4096)),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=pre_norms(of.hidden),
    )
    config.ignore("attention_bias")
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
