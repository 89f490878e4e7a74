"""Command R: attention and feed-forward side by side behind one LayerNorm without bias, a tied head."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Parameter, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/cohere/modeling_cohere.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    extra: tuple[Parameter, ...] = ()
    if config.flag("use_qk_norm", default=False):
        # Weights of heads × head size, one for each head.
        extra = tuple(
            Parameter(name=f"self_attn.{side}_norm.weight", shape=(count, of.head_dim), role="norm")
            for side, count in (("q", of.heads), ("k", of.kv_heads))
        )

    def norm(name: str) -> Norm:
        # CohereLayerNorm is written out in float32, not torch's kernel.
        return Norm(kind="layer", size=of.hidden, name=name)

    block = Block(
        mixer=attention(of, qkv_bias=bias, out_bias=bias, extra=extra),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=(("pre_mixer", norm("input_layernorm")),),
        parallel=True,
    )
    return decoder(config, of, block, root=root, head=head, tied_default=True, final=norm(f"{root}.norm"))


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
