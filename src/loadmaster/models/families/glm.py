"""GLM-4 9B: biases on query, key and value; gate and up fused; half of each head rotated."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, fused_gated_mlp, pre_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(
    config: Config, root: str = "model", head: str = "lm_head", *, sandwich: bool = False
) -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/glm/modeling_glm.py); GLM-4-0414 adds two norms."""
    of = shape(config)
    norms = pre_norms(of.hidden)
    if sandwich:
        norms = (
            *norms,
            ("post_mixer", rms("post_self_attn_layernorm", of.hidden)),
            ("post_feedforward", rms("post_mlp_layernorm", of.hidden)),
        )
    block = Block(
        mixer=attention(
            of,
            qkv_bias=config.flag("attention_bias", default=True),
            rotary_dim=rotary_dim(config, of.head_dim, 0.5),
        ),
        feedforward=fused_gated_mlp(of.hidden, of.width, of.activation),
        norms=norms,
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
