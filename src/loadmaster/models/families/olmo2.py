"""OLMo 2: norms behind attention and feed-forward instead of before, and on all queries and keys at once."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower


def after(hidden: int) -> tuple[tuple[str, Norm], ...]:
    """The two norms of a layer, each on a part's output, before it joins the residual."""
    return (
        ("post_mixer", rms("post_attention_layernorm", hidden)),
        ("post_feedforward", rms("post_feedforward_layernorm", hidden)),
    )


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/olmo2/modeling_olmo2.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, **head_norms(of, whole=True)),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=after(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
