"""OPT: learned positions with an offset of two, LayerNorm, ReLU, biases everywhere."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, dropped, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, Head, Linear, ModelSpec, Tower
from loadmaster.records import replace

POSITION_OFFSET = 2
"""OPTLearnedPositionalEmbedding has two rows more than positions (transformers: models/opt/modeling_opt.py)."""


def text(config: Config, root: str = "model.decoder", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/opt/modeling_opt.py)."""
    of = shape(config, activation=config.text("activation_function", "hidden_act", default="relu"))
    bias = config.flag("enable_bias", default=True)
    before = config.flag("do_layer_norm_before", default=True)
    affine = config.flag("layer_norm_elementwise_affine", default=True)
    positions = config.count("max_position_embeddings") + POSITION_OFFSET
    token = config.maybe("word_embed_proj_dim") or of.hidden
    around: tuple[Linear, ...] = ()
    if token != of.hidden:
        around = (
            Linear(name=f"{root}.project_out", inputs=of.hidden, outputs=token),
            Linear(name=f"{root}.project_in", inputs=token, outputs=of.hidden),
        )

    block = Block(
        mixer=attention(of, output="out_proj", qkv_bias=bias, out_bias=bias, position="learned"),
        feedforward=plain_mlp(of.hidden, of.width, of.activation, prefix="", bias=bias),
        norms=(
            ("pre_mixer", layer_norm("self_attn_layer_norm", of.hidden, bias=affine, weight=affine)),
            ("pre_feedforward", layer_norm("final_layer_norm", of.hidden, bias=affine, weight=affine)),
        ),
        post_norm=not before,
    )
    block = dropped(block, config.chance("dropout", default=0.1), config.chance("attention_dropout"))
    last = before and not config.flag("_remove_final_layer_norm", default=False)
    final = layer_norm(f"{root}.final_layer_norm", of.hidden, bias=affine, weight=affine)
    tower, top = decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        tied_default=True,
        final=final,
        token_width=token,
        linears=around,
        embeddings=(
            Embedding(name=f"{root}.embed_positions", role="position", rows=positions, width=of.hidden),
        ),
    )
    if not last:
        tower = replace(tower, norms=())
    return tower, replace(top, inputs=token)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
