"""Command R7B and A: Command R's layer; three windowed layers to each full one, which has no rotary positions."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/cohere2/modeling_cohere2.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    size = window(config, 4096)
    every = config.count("sliding_window_pattern", "_sliding_window_pattern", default=4)
    order = layer_types(config, of.layers, lambda index: SLIDING if (index + 1) % every else FULL)
    kinds = {
        name: Block(
            name=name,
            mixer=attention(
                of, qkv_bias=bias, out_bias=bias, window=seen, position="rope" if seen else "none"
            ),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=(("pre_mixer", Norm(kind="layer", size=of.hidden, name="input_layernorm")),),
            parallel=True,
        )
        for name, seen in ((SLIDING, size), (FULL, None))
    }
    final = Norm(kind="layer", size=of.hidden, name=f"{root}.norm")
    return decoder(config, of, kinds, order, root=root, head=head, tied_default=True, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
