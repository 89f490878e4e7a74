"""Mixtral: Mistral's attention and eight experts, of which a token takes two."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/mixtral/modeling_mixtral.py)."""
    of = shape(config)
    moe = experts(
        of.hidden,
        of.width,
        of.activation,
        count=config.count("num_local_experts", "num_experts"),
        per_token=config.count("num_experts_per_tok"),
        wide_weights=True,
    )
    config.ignore("num_experts")
    block = Block(
        mixer=attention(of, window=window(config, None)), feedforward=moe, norms=pre_norms(of.hidden)
    )
    return decoder(config, of, block, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
