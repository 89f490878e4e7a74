"""Baichuan 1 and 2: Llama's layer, query-key-value packed; the 13B models use ALiBi."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_baichuan.py)."""
    of = shape(config)
    # The 13B code writes model_max_length and no rotary positions; the 7B code max_position_embeddings.
    alibi = str(config.value("position_embedding", default="")).lower() == "alibi" or of.hidden == 5120
    config.ignore("model_max_length")
    block = Block(
        mixer=fused_attention(of, name="W_pack", position="alibi" if alibi else "rope"),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=pre_norms(of.hidden),
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
