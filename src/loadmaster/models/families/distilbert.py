"""DistilBERT: BERT's layer under other names, half as many, without token types and pooler."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import attention, dropped, encoder_shape, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, ModelSpec, Tower


def read(config: Config) -> ModelSpec:
    """The network without a task's head (transformers: models/distilbert/modeling_distilbert.py)."""
    of = encoder_shape(
        config.count("dim", "hidden_size"),
        config.layers("n_layers", "num_hidden_layers"),
        config.count("n_heads", "num_attention_heads"),
        config.count("hidden_dim", "intermediate_size"),
        config.text("activation", "hidden_act", default="gelu"),
    )
    config.ignore(
        "sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"
    )
    positions = config.count("max_position_embeddings", default=512)
    block = Block(
        mixer=attention(
            of,
            prefix="attention",
            names=("q_lin", "k_lin", "v_lin"),
            output="out_lin",
            qkv_bias=True,
            out_bias=True,
            position="learned",
            causal=False,
            wide_softmax=False,
        ),
        feedforward=plain_mlp(of.hidden, of.width, of.activation, prefix="ffn", names=("lin1", "lin2")),
        norms=(
            ("post_mixer", layer_norm("sa_layer_norm", of.hidden)),
            ("post_feedforward", layer_norm("output_layer_norm", of.hidden)),
        ),
        post_norm=True,
    )
    block = dropped(
        block, config.chance("dropout", default=0.1), config.chance("attention_dropout", default=0.1)
    )
    vocab = config.count("vocab_size")
    config.report_unknown()
    tower = Tower(
        name="encoder",
        hidden=of.hidden,
        prefix="transformer.layer",
        blocks=(block,),
        layout=(0,) * of.layers,
        embeddings=(
            Embedding(name="embeddings.word_embeddings", role="token", rows=vocab, width=of.hidden),
            Embedding(
                name="embeddings.position_embeddings", role="position", rows=positions, width=of.hidden
            ),
        ),
        norms=(("embedding", layer_norm("embeddings.LayerNorm", of.hidden)),),
    )
    return assemble(config, [tower], None)
