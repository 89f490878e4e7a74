"""T5, Flan-T5, T0: encoder and decoder with relative positions learned in their first layers."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, attention, dropped, gated_mlp, plain_mlp, shape, t5_norm
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Embedding, Head, Mlp, ModelSpec, Norm, Parameter, Tower
from loadmaster.records import replace

_NAMES = ("q", "k", "v")


def _feedforward(of: Shape, kind: str, place: int) -> Mlp:
    prefix = f"layer.{place}.DenseReluDense"
    gated, _, activation = kind.rpartition("-")
    if gated == "gated":
        # T5Config: "gated-gelu" means gelu_new.
        activation = "gelu_new" if activation == "gelu" else activation
        part = gated_mlp(of.hidden, of.width, activation, prefix=prefix, names=("wi_0", "wi_1", "wo"))
    else:
        part = plain_mlp(of.hidden, of.width, activation, prefix=prefix, names=("wi", "wo"), bias=False)
    return replace(part, output=replace(part.output, kept=True))


def _attention(of: Shape, buckets: int, *, first: bool, causal: bool) -> Attention:
    """Self-attention; the first layer's bias of positions serves all others."""
    table = Parameter(
        name="layer.0.SelfAttention.relative_attention_bias.weight",
        shape=(buckets, of.heads),
        role="position",
    )
    return attention(
        of,
        prefix="layer.0.SelfAttention",
        names=_NAMES,
        output="o",
        position="relative",
        wide_softmax=False,
        causal=causal,
        bias="made" if first else "shared",
        extra=(table,) if first else (),
    )


def tower(config: Config, of: Shape, layers: int, *, name: str, cross: bool, embedding: str | None) -> Tower:
    """One of the two stacks (transformers: models/t5/modeling_t5.py, T5Stack)."""
    buckets = config.count("relative_attention_num_buckets", default=32)
    # mT5 was gated from the start (transformers: configuration_mt5.py).
    kind = config.text("feed_forward_proj", default="gated-gelu" if config.model_type == "mt5" else "relu")
    norms: tuple[tuple[str, Norm], ...] = (("pre_mixer", t5_norm("layer.0.layer_norm", of.hidden)),)
    other = None
    if cross:
        other = attention(
            of,
            prefix="layer.1.EncDecAttention",
            names=_NAMES,
            output="o",
            position="none",
            wide_softmax=False,
            causal=False,
            cross=True,
        )
        norms = (*norms, ("pre_cross", t5_norm("layer.1.layer_norm", of.hidden)))
    last = 2 if cross else 1
    norms = (*norms, ("pre_feedforward", t5_norm(f"layer.{last}.layer_norm", of.hidden)))
    chance = config.chance("dropout_rate", default=0.1)
    blocks = tuple(
        dropped(
            Block(
                name="first" if first else "layer",
                mixer=_attention(of, buckets, first=first, causal=cross),
                cross=None if other is None else replace(other, bias="made" if first else "shared"),
                feedforward=replace(_feedforward(of, kind, last), dropout=chance),
                norms=norms,
            ),
            chance,
            chance,
        )
        for first in (True, False)
    )
    table = (
        Embedding(name=embedding, role="token", rows=of.vocab or config.count("vocab_size"), width=of.hidden)
        if embedding
        else None
    )
    return Tower(
        name=name,
        hidden=of.hidden,
        prefix=f"{name}.block",
        blocks=blocks if layers > 1 else blocks[:1],
        layout=(0,) + (1,) * (layers - 1),
        embeddings=(table,) if table else (),
        norms=(("final", t5_norm(f"{name}.final_layer_norm", of.hidden)),),
    )


def sizes(config: Config) -> Shape:
    """T5's own names for the usual sizes."""
    return shape(
        config,
        hidden=config.count("d_model"),
        head_dim=config.count("d_kv"),
        width=config.count("d_ff"),
        activation="relu",
    )


def encoder(config: Config) -> Tower:
    """The encoder alone, as image pipelines use it (transformers: T5EncoderModel)."""
    of = sizes(config)
    return tower(config, of, of.layers, name="encoder", cross=False, embedding="shared")


def read(config: Config) -> ModelSpec:
    """The whole model. The head is tied or not as the config says; transformers 5 ties it whatever it says."""
    of = sizes(config)
    deep = config.layers("num_decoder_layers", default=of.layers)
    config.ignore("n_positions", "is_gated_act", "dense_act_fn", "is_encoder_decoder")
    towers = (
        tower(config, of, of.layers, name="encoder", cross=False, embedding="shared"),
        tower(config, of, deep, name="decoder", cross=True, embedding=None),
    )
    tied = config.flag("tie_word_embeddings", default=True)
    config.report_unknown()
    vocab = of.vocab or config.count("vocab_size")
    head = Head(upcast=False, last_only=False, always_tied=True, vocab=vocab, inputs=of.hidden, tied=tied)
    return assemble(config, towers, head)
