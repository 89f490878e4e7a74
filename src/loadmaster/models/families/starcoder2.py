"""StarCoder 2: grouped keys, LayerNorm, biases, a plain feed-forward, a sliding window."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/starcoder2/modeling_starcoder2.py)."""
    of = shape(config, activation=config.text("hidden_act", default="gelu_pytorch_tanh"))
    bias = config.flag("use_bias", default=True)
    config.ignore("mlp_type", "norm_type")
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, window=window(config, None)),
        feedforward=plain_mlp(of.hidden, of.width, of.activation, names=("c_fc", "c_proj"), bias=bias),
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", of.hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)),
        ),
    )
    final = layer_norm(f"{root}.norm", of.hidden)
    return decoder(config, of, block, root=root, head=head, tied_default=True, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
