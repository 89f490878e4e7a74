"""InternLM 2 and 2.5: Llama's layer under other names, query-key-value fused."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, gated_mlp, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "output") -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_internlm2.py)."""
    of = shape(config)
    bias = config.flag("bias", default=True)
    block = Block(
        mixer=fused_attention(of, prefix="attention", name="wqkv", output="wo", qkv_bias=bias, out_bias=bias),
        feedforward=gated_mlp(
            of.hidden, of.width, of.activation, prefix="feed_forward", names=("w1", "w3", "w2")
        ),
        norms=(
            ("pre_mixer", rms("attention_norm", of.hidden)),
            ("pre_feedforward", rms("ffn_norm", of.hidden)),
        ),
    )
    return decoder(config, of, block, root=root, head=head, embedding="tok_embeddings")


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
