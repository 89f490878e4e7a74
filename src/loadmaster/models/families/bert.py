"""BERT: learned positions and token types, norms behind the residual sums, a pooler."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, attention, dropped, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, Linear, ModelSpec, Tower
from loadmaster.records import replace


def block(of: Shape, names: tuple[str, str, str] = ("query", "key", "value")) -> Block:
    """One layer (transformers: models/bert/modeling_bert.py, BertLayer)."""
    mixer = attention(
        of,
        prefix="attention.self",
        names=names,
        output="output",
        qkv_bias=True,
        position="learned",
        causal=False,
        wide_softmax=False,
    )
    output = Linear(
        name="attention.output.dense", inputs=of.heads * of.head_dim, outputs=of.hidden, bias=True
    )
    return Block(
        mixer=replace(mixer, output=output),
        feedforward=plain_mlp(
            of.hidden, of.width, of.activation, prefix="", names=("intermediate.dense", "output.dense")
        ),
        norms=(
            ("post_mixer", layer_norm("attention.output.LayerNorm", of.hidden)),
            ("post_feedforward", layer_norm("output.LayerNorm", of.hidden)),
        ),
        post_norm=True,
    )


def dropped_block(config: Config, layer: Block) -> Block:
    """The layer with BERT's dropout, 0.1 unless the config says otherwise."""
    hidden = config.chance("hidden_dropout_prob", default=0.1)
    return dropped(layer, hidden, config.chance("attention_probs_dropout_prob", default=0.1))


def read(config: Config) -> ModelSpec:
    """The network without a task's head (transformers: BertModel)."""
    of = shape(config, activation=config.text("hidden_act", default="gelu"))
    tables = [
        Embedding(
            name="embeddings.word_embeddings", role="token", rows=config.count("vocab_size"), width=of.hidden
        ),
        Embedding(
            name="embeddings.position_embeddings",
            role="position",
            rows=config.count("max_position_embeddings"),
            width=of.hidden,
        ),
    ]
    types = config.count("type_vocab_size", default=2, least=0)
    if types:
        tables.append(
            Embedding(name="embeddings.token_type_embeddings", role="type", rows=types, width=of.hidden)
        )
    config.ignore(
        "attention_bias", "mlp_bias", "tie_word_embeddings", "position_embedding_type", "add_cross_attention"
    )
    config.report_unknown()
    tower = Tower(
        name="encoder",
        hidden=of.hidden,
        prefix="encoder.layer",
        blocks=(dropped_block(config, block(of)),),
        layout=(0,) * of.layers,
        embeddings=tuple(tables),
        norms=(("embedding", layer_norm("embeddings.LayerNorm", of.hidden)),),
        linears=(Linear(name="pooler.dense", inputs=of.hidden, outputs=of.hidden, bias=True),),
    )
    return assemble(config, [tower], None)
