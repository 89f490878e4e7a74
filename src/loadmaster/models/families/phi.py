"""Phi 1, 1.5 and 2: attention and feed-forward side by side behind one LayerNorm, biases everywhere, head too."""

from __future__ import annotations

from typing import Any

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/phi/modeling_phi.py)."""
    of = shape(config, activation=config.text("hidden_act", default="gelu_new"))
    norms: dict[str, Any] = {}
    if config.flag("qk_layernorm", default=False):
        norms = {
            "query_norm": layer_norm("self_attn.q_layernorm", of.head_dim),
            "key_norm": layer_norm("self_attn.k_layernorm", of.head_dim),
        }
    config.ignore("attention_bias", "mlp_bias", "parallel_residual")
    block = Block(
        mixer=attention(
            of,
            output="dense",
            qkv_bias=True,
            out_bias=True,
            rotary_dim=rotary_dim(config, of.head_dim, 0.5),
            **norms,
        ),
        feedforward=plain_mlp(of.hidden, of.width, of.activation),
        norms=(("pre_mixer", layer_norm("input_layernorm", of.hidden)),),
        parallel=True,
    )
    final = layer_norm(f"{root}.final_layernorm", of.hidden)
    return decoder(config, of, block, root=root, head=head, head_bias=True, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
