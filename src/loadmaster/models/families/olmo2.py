"""OLMo 2: norms behind attention and feed-forward instead of before, and on all queries and keys at once."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower
from loadmaster.records import replace


def wide(norm: Norm) -> Norm:
    """Olmo2RMSNorm multiplies in float32 and casts the product (transformers: models/olmo2/modeling_olmo2.py)."""
    return replace(norm, wide_scale=True)


def after(hidden: int) -> tuple[tuple[str, Norm], ...]:
    """The two norms of a layer, each on a part's output, before it joins the residual."""
    return (
        ("post_mixer", wide(rms("post_attention_layernorm", hidden))),
        ("post_feedforward", wide(rms("post_feedforward_layernorm", hidden))),
    )


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/olmo2/modeling_olmo2.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    block = Block(
        mixer=attention(
            of,
            qkv_bias=bias,
            out_bias=bias,
            **head_norms(of, whole=True, wide=True),
        ),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=after(of.hidden),
    )
    tower, top = decoder(config, of, block, root=root, head=head)
    return replace(tower, norms=tuple((place, wide(norm)) for place, norm in tower.norms)), top


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
