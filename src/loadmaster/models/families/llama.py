"""Llama 1 to 3.3, and the many that share its code: Yi, SmolLM 1-2, TinyLlama, Vicuna, DeepSeek-Coder."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower

DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip
"""What LlamaConfig of transformers 5 fills in: a model that nests this one may leave fields out."""


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/llama/modeling_llama.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias),
        feedforward=gated_mlp(
            of.hidden, of.width, of.activation, bias=config.flag("mlp_bias", default=False)
        ),
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config), positions=2048)
