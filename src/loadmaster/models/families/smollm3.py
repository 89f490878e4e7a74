"""SmolLM3: Llama's layer; every fourth layer has no rotary positions."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/smollm3/modeling_smollm3.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    every = config.count("no_rope_layer_interval", default=4)
    default = tuple(int((index + 1) % every != 0) for index in range(of.layers))
    rotated = config.counts("no_rope_layers", default=default, length=of.layers)
    size = window(config, None) if config.flag("use_sliding_window", default=False) else None
    config.ignore("sliding_window")
    seen = layer_types(config, of.layers, lambda i: SLIDING if size and not rotated[i] else FULL)
    feedforward = gated_mlp(of.hidden, of.width, of.activation, bias=config.flag("mlp_bias", default=False))
    kinds = {
        f"{kind}{'' if rope else '_no_rope'}": Block(
            name=f"{kind}{'' if rope else '_no_rope'}",
            mixer=attention(
                of,
                qkv_bias=bias,
                out_bias=bias,
                window=size if kind == SLIDING else None,
                position="rope" if rope else "none",
            ),
            feedforward=feedforward,
            norms=pre_norms(of.hidden),
        )
        for kind in (FULL, SLIDING)
        for rope in (True, False)
    }
    order = [f"{kind}{'' if rope else '_no_rope'}" for kind, rope in zip(seen, rotated, strict=True)]
    return decoder(config, of, kinds, order, root=root, head=head, tied_default=True)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
