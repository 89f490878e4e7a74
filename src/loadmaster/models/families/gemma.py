"""Gemma 1: Llama's layer with norms stored as an offset from one, GELU, and a tied head."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gemma/modeling_gemma.py)."""
    # Gemma's first configs say hidden_act gelu; the class runs the tanh form whatever they say.
    activation = config.text("hidden_activation", default="gelu_pytorch_tanh")
    config.ignore("hidden_act")
    of = shape(config, head_dim=config.count("head_dim", default=256), activation=activation)
    bias = config.flag("attention_bias", default=False)
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=pre_norms(of.hidden, plus_one=True),
    )
    final = rms(f"{root}.norm", of.hidden, plus_one=True)
    return decoder(config, of, block, root=root, head=head, tied_default=True, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
