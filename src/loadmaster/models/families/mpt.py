"""MPT: ALiBi, LayerNorm without bias, query-key-value fused, no biases at all."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/mpt/modeling_mpt.py)."""
    hidden = config.count("d_model", "hidden_size")
    # The class fixes the feed-forward at four widths, whatever expansion_ratio says.
    config.ignore("expansion_ratio")
    of = shape(config, hidden=hidden, width=4 * hidden, activation="gelu")
    config.ignore(
        "intermediate_size", "no_bias", "learned_pos_emb", "embedding_fraction", "resid_pdrop", "emb_pdrop"
    )
    config.ignore(
        "attn_config", "ffn_config", "init_config", "hidden_act", "verbose", "tokenizer_name", "max_seq_len"
    )
    nested = config.fields.get("attn_config")
    clip = isinstance(nested, dict) and bool(nested.get("clip_qkv"))
    block = Block(
        mixer=fused_attention(
            of, prefix="attn", name="Wqkv", output="out_proj", position="alibi", clip_qkv=clip
        ),
        feedforward=plain_mlp(
            hidden, of.width, of.activation, prefix="ffn", names=("up_proj", "down_proj"), bias=False
        ),
        norms=(
            ("pre_mixer", layer_norm("norm_1", hidden, bias=False)),
            ("pre_feedforward", layer_norm("norm_2", hidden, bias=False)),
        ),
    )
    final = layer_norm(f"{root}.norm_f", hidden, bias=False)
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        tied_default=True,
        prefix="blocks",
        embedding="wte",
        final=final,
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
