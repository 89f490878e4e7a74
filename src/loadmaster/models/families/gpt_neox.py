"""GPT-NeoX, Pythia, StableLM-Alpha: attention and feed-forward side by side, each behind its own LayerNorm."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "gpt_neox", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gpt_neox/modeling_gpt_neox.py)."""
    of = shape(config, activation=config.text("hidden_act", default="gelu"))
    bias = config.flag("attention_bias", default=True)
    config.ignore("mlp_bias")
    block = Block(
        mixer=fused_attention(
            of,
            prefix="attention",
            name="query_key_value",
            output="dense",
            qkv_bias=bias,
            out_bias=bias,
            rotary_dim=rotary_dim(config, of.head_dim, 0.25),
        ),
        feedforward=plain_mlp(of.hidden, of.width, of.activation, names=("dense_h_to_4h", "dense_4h_to_h")),
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", of.hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)),
        ),
        parallel=config.flag("use_parallel_residual", "parallel_residual", default=True),
    )
    final = layer_norm(f"{root}.final_layer_norm", of.hidden)
    return decoder(config, of, block, root=root, head=head, embedding="embed_in", final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
