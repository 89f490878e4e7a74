"""BART: encoder and decoder with norms behind the residual sums, learned positions with an offset of two."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, attention, dropped, encoder_shape, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Embedding, Head, ModelSpec, Norm, Tower

POSITION_OFFSET = 2
"""BartLearnedPositionalEmbedding has two rows more than positions (transformers: models/bart/modeling_bart.py)."""


def _attention(of: Shape, prefix: str, *, causal: bool, cross: bool = False) -> Attention:
    return attention(
        of,
        prefix=prefix,
        output="out_proj",
        qkv_bias=True,
        out_bias=True,
        position="learned",
        wide_softmax=False,
        causal=causal,
        cross=cross,
    )


def _tower(config: Config, side: str, vocab: int | None) -> Tower:
    of = encoder_shape(
        config.count("d_model"),
        config.layers(f"{side}_layers"),
        config.count(f"{side}_attention_heads"),
        config.count(f"{side}_ffn_dim"),
        config.text("activation_function", default="gelu"),
    )
    cross = side == "decoder"
    root = f"model.{side}"
    rows = config.count("max_position_embeddings", default=1024) + POSITION_OFFSET
    norms: tuple[tuple[str, Norm], ...] = (("post_mixer", layer_norm("self_attn_layer_norm", of.hidden)),)
    if cross:
        norms = (*norms, ("post_cross", layer_norm("encoder_attn_layer_norm", of.hidden)))
    tables = [Embedding(name=f"{root}.embed_positions", role="position", rows=rows, width=of.hidden)]
    if vocab:
        tables.insert(0, Embedding(name="model.shared", role="token", rows=vocab, width=of.hidden))
    block = Block(
        mixer=_attention(of, "self_attn", causal=cross),
        cross=_attention(of, "encoder_attn", causal=False, cross=True) if cross else None,
        feedforward=plain_mlp(of.hidden, of.width, of.activation, prefix=""),
        norms=(*norms, ("post_feedforward", layer_norm("final_layer_norm", of.hidden))),
        post_norm=True,
    )
    block = dropped(block, config.chance("dropout", default=0.1), config.chance("attention_dropout"))
    return Tower(
        name=side,
        hidden=of.hidden,
        prefix=f"{root}.layers",
        blocks=(block,),
        layout=(0,) * of.layers,
        embeddings=tuple(tables),
        norms=(("embedding", layer_norm(f"{root}.layernorm_embedding", of.hidden)),),
    )


def read(config: Config) -> ModelSpec:
    """The whole model; the head is tied, its bias is a buffer."""
    vocab = config.count("vocab_size")
    towers = (_tower(config, "encoder", vocab), _tower(config, "decoder", None))
    config.ignore("num_hidden_layers", "tie_word_embeddings", "add_bias_logits", "add_final_layer_norm")
    config.ignore("normalize_before", "normalize_embedding", "num_labels", "static_position_embeddings")
    config.report_unknown()
    return assemble(config, towers, Head(vocab=vocab, inputs=towers[1].hidden, tied=True, upcast=False))
