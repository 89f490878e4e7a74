"""Qwen3-Next: three gated delta layers to one gated attention layer, experts with a shared one."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import Shape, attention, decoder, gated_mlp, head_norms, pre_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.qwen2_moe import order, shared_experts, sparse
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import (
    Attention,
    Block,
    FeedForward,
    Head,
    Linear,
    Mixer,
    ModelSpec,
    Parameter,
    StateSpace,
    Tower,
)
from loadmaster.models.windows import FULL, LINEAR, layer_types
from loadmaster.records import replace


def gated_delta(config: Config, of: Shape) -> StateSpace:
    """The gated delta rule (arXiv:2412.06464; transformers: Qwen3NextGatedDeltaNet)."""
    key_heads, key_dim = config.count("linear_num_key_heads"), config.count("linear_key_head_dim")
    heads, value_dim = config.count("linear_num_value_heads"), config.count("linear_value_head_dim")
    kernel = config.count("linear_conv_kernel_dim")
    keys, values = key_heads * key_dim, heads * value_dim
    channels = 2 * keys + values
    place = "linear_attn"
    return StateSpace(
        kind="gated_delta",
        inner=values,
        state=key_dim,
        conv_kernel=kernel,
        conv_channels=channels,
        heads=heads,
        head_dim=value_dim,
        groups=key_heads,
        projections=(
            Linear(name=f"{place}.in_proj_qkvz", inputs=of.hidden, outputs=2 * keys + 2 * values),
            Linear(name=f"{place}.in_proj_ba", inputs=of.hidden, outputs=2 * heads),
        ),
        output=Linear(name=f"{place}.out_proj", inputs=values, outputs=of.hidden),
        extra=(
            Parameter(name=f"{place}.dt_bias", shape=(heads,)),
            Parameter(name=f"{place}.A_log", shape=(heads,)),
            Parameter(name=f"{place}.conv1d.weight", shape=(channels, 1, kernel)),
        ),
        inner_norms=(("output", rms(f"{place}.norm", value_dim)),),
    )


def gated_attention(config: Config, of: Shape) -> Attention:
    """Attention whose query matrix also makes a gate for the output."""
    bias = config.flag("attention_bias", default=False)
    plain = attention(
        of,
        qkv_bias=bias,
        out_bias=bias,
        gated_output=True,
        rotary_dim=rotary_dim(config, of.head_dim, 0.25),
        **head_norms(of, plus_one=True),
    )
    query, *rest = plain.projections
    return replace(plain, projections=(replace(query, outputs=2 * query.outputs), *rest))


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/qwen3_next/modeling_qwen3_next.py)."""
    of = shape(config)
    every = config.count("full_attention_interval", default=4)
    kinds = layer_types(config, of.layers, lambda index: LINEAR if (index + 1) % every else FULL)
    mixers: dict[str, Mixer] = {FULL: gated_attention(config, of), LINEAR: gated_delta(config, of)}
    feedforwards: dict[str, FeedForward] = {
        "": shared_experts(config, of),
        "_dense": gated_mlp(of.hidden, of.width, of.activation),
    }
    table = {
        f"{kind}{end}": Block(
            name=f"{kind}{end}", mixer=mixer, feedforward=part, norms=pre_norms(of.hidden, plus_one=True)
        )
        for kind, mixer in mixers.items()
        for end, part in feedforwards.items()
    }
    final = rms(f"{root}.norm", of.hidden, plus_one=True)
    names = order(kinds, sparse(config, of.layers))
    return decoder(config, of, table, names, root=root, head=head, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model; a multi-token-prediction layer is not built, as in transformers."""
    return one_text(config, text(config))
