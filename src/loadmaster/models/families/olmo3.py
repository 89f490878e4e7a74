"""OLMo 3: OLMo 2's layer; three windowed layers to each full one."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.olmo2 import after, wide
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window
from loadmaster.records import replace


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/olmo3/modeling_olmo3.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=False)
    size = window(config, 4096)
    order = layer_types(config, of.layers, lambda index: SLIDING if (index + 1) % 4 else FULL)
    kinds = {
        name: Block(
            name=name,
            mixer=attention(
                of,
                qkv_bias=bias,
                out_bias=bias,
                window=seen,
                **head_norms(of, whole=True, wide=True),
            ),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=after(of.hidden),
        )
        for name, seen in ((SLIDING, size), (FULL, None))
    }
    tower, top = decoder(config, of, kinds, order, root=root, head=head)
    return replace(tower, norms=tuple((place, wide(norm)) for place, norm in tower.norms)), top


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
