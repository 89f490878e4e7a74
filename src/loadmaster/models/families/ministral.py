"""Ministral: Mistral's layer, windowed in the layers that ``layer_types`` names."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/ministral/modeling_ministral.py)."""
    of = shape(config)
    size = window(config, 4096)
    order = layer_types(config, of.layers, lambda _: SLIDING if size else FULL)
    kinds = {
        name: Block(
            name=name,
            mixer=attention(of, window=seen),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=pre_norms(of.hidden),
        )
        for name, seen in ((FULL, None), (SLIDING, size))
    }
    return decoder(config, of, kinds, order, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
