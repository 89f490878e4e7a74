"""GPT-2: learned positions, LayerNorm, one fused query-key-value matrix, biases everywhere."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, dropped, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Embedding, Head, Mlp, ModelSpec, Tower
from loadmaster.records import replace


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gpt2/modeling_gpt2.py; its Conv1D is a linear layer)."""
    hidden = config.count("n_embd", "hidden_size")
    width = config.maybe("n_inner", "intermediate_size") or 4 * hidden
    of = shape(
        config, hidden=hidden, width=width, activation=config.text("activation_function", default="gelu_new")
    )
    positions = config.count("n_positions", "n_ctx", default=1024)
    config.ignore("n_ctx", "add_cross_attention")
    block = Block(
        mixer=fused_attention(
            of,
            prefix="attn",
            name="c_attn",
            output="c_proj",
            qkv_bias=True,
            out_bias=True,
            position="learned",
            wide_softmax=False,
        ),
        feedforward=plain_mlp(hidden, width, of.activation, names=("c_fc", "c_proj")),
        norms=(("pre_mixer", layer_norm("ln_1", hidden)), ("pre_feedforward", layer_norm("ln_2", hidden))),
    )
    return decoder(
        config,
        of,
        dropped(
            _inputs_first(block),
            config.chance("resid_pdrop", default=0.1),
            config.chance("attn_pdrop", default=0.1),
        ),
        root=root,
        head=head,
        tied_default=True,
        prefix="h",
        embedding="wte",
        final=layer_norm(f"{root}.ln_f", hidden),
        embeddings=(Embedding(name=f"{root}.wpe", role="position", rows=positions, width=hidden),),
    )


def _inputs_first(block: Block) -> Block:
    # transformers' Conv1D keeps its weight as inputs × outputs.
    mixer, part = block.mixer, block.feedforward
    if not isinstance(mixer, Attention) or not isinstance(part, Mlp):
        raise AssertionError(block)
    flip = [
        replace(each, inputs_first=True)
        for each in (*mixer.projections, mixer.output, *part.projections, part.output)
    ]
    return replace(
        block,
        mixer=replace(mixer, projections=(flip[0],), output=flip[1]),
        feedforward=replace(part, projections=(flip[2],), output=flip[3]),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
