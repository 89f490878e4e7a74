"""gpt-oss: every other layer windowed, sinks in the softmax, experts with biases, biases on attention."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.olmo2 import wide
from loadmaster.models.spec import Block, Head, ModelSpec, Parameter, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window
from loadmaster.records import replace


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gpt_oss/modeling_gpt_oss.py)."""
    of = shape(config)
    bias = config.flag("attention_bias", default=True)
    config.ignore("mlp_bias", "experts_per_token", "num_experts")
    moe = experts(
        of.hidden,
        of.width,
        "clamped_swiglu",
        count=config.count("num_local_experts", "num_experts"),
        per_token=config.count("num_experts_per_tok", "experts_per_token"),
        router="router",
        router_bias=True,
        bias=True,
        inputs_first=True,
    )
    size = window(config, 128)
    order = layer_types(config, of.layers, lambda index: FULL if index % 2 else SLIDING)
    sinks = Parameter(name="self_attn.sinks", shape=(of.heads,))
    kinds = {
        name: Block(
            name=name,
            mixer=attention(of, qkv_bias=bias, out_bias=bias, window=seen, sinks=of.heads, extra=(sinks,)),
            feedforward=moe,
            norms=tuple((place, wide(norm)) for place, norm in pre_norms(of.hidden)),
        )
        for name, seen in ((SLIDING, size), (FULL, None))
    }
    tower, top = decoder(config, of, kinds, order, root=root, head=head)
    return replace(tower, norms=tuple((place, wide(norm)) for place, norm in tower.norms)), top


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
