"""BLOOM: ALiBi instead of positions, a norm behind the token table, fused query-key-value, biases everywhere."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/bloom/modeling_bloom.py)."""
    hidden = config.count("hidden_size", "n_embed")
    config.ignore("intermediate_size", "n_inner", "attention_bias", "mlp_bias", "hidden_act", "n_embed")
    of = shape(config, hidden=hidden, width=4 * hidden, activation="bloom_gelu")
    block = Block(
        mixer=fused_attention(
            of,
            prefix="self_attention",
            name="query_key_value",
            output="dense",
            qkv_bias=True,
            out_bias=True,
            position="alibi",
            sdpa=False,
        ),
        feedforward=plain_mlp(hidden, of.width, of.activation, names=("dense_h_to_4h", "dense_4h_to_h")),
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", hidden)),
        ),
    )
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        tied_default=True,
        prefix="h",
        embedding="word_embeddings",
        final=layer_norm(f"{root}.ln_f", hidden),
        outer_norms=(("embedding", layer_norm(f"{root}.word_embeddings_layernorm", hidden)),),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
