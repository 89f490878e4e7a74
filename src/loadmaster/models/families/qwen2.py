"""Qwen 1.5, 2 and 2.5: Llama's layer with biases on query, key and value."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, switched

DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32,
}  # fmt: skip
"""What Qwen2Config of transformers 5 fills in: a model that nests this one may leave fields out."""


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/qwen2/modeling_qwen2.py)."""
    of = shape(config)
    order, size = switched(config, of.layers)
    config.ignore("attention_bias", "attention_out_bias")
    kinds = {
        name: Block(
            name=name,
            mixer=attention(of, qkv_bias=True, window=seen),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=pre_norms(of.hidden),
        )
        for name, seen in ((FULL, None), (SLIDING, size))
    }
    return decoder(config, of, kinds, order, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config), positions=32768)
