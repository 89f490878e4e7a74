"""GPT-J: attention and feed-forward side by side behind one LayerNorm, a bias on the head."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gptj/modeling_gptj.py)."""
    hidden = config.count("n_embd", "hidden_size")
    width = config.maybe("n_inner", "intermediate_size") or 4 * hidden
    activation = config.text("activation_function", "hidden_act", default="gelu_new")
    of = shape(config, hidden=hidden, width=width, activation=activation)
    config.ignore("attention_bias", "mlp_bias", "parallel_residual")
    block = Block(
        mixer=attention(
            of,
            prefix="attn",
            output="out_proj",
            rotary_dim=config.count("rotary_dim", default=64, most=of.head_dim),
        ),
        feedforward=plain_mlp(hidden, width, activation, names=("fc_in", "fc_out")),
        norms=(("pre_mixer", layer_norm("ln_1", hidden)),),
        parallel=True,
    )
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        head_bias=True,
        prefix="h",
        embedding="wte",
        final=layer_norm(f"{root}.ln_f", hidden),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
