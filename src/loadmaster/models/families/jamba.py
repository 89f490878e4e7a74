"""Jamba: one attention layer in eight, the others Mamba; experts in every other layer."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, gated_mlp, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.mamba import rank, selective
from loadmaster.models.spec import Block, Experts, FeedForward, Head, Mixer, ModelSpec, StateSpace, Tower


def _mamba(config: Config, hidden: int) -> StateSpace:
    state, step = config.count("mamba_d_state", default=16), rank(config, "mamba_dt_rank", hidden)
    norms = (("dt", step), ("b", state), ("c", state))
    return selective(
        prefix="mamba",
        hidden=hidden,
        inner=config.count("mamba_expand", default=2) * hidden,
        state=state,
        kernel=config.count("mamba_d_conv", default=4),
        rank=step,
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        inner_norms=tuple((name, rms(f"mamba.{name}_layernorm", size)) for name, size in norms),
    )


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/jamba/modeling_jamba.py)."""
    of = shape(config)
    period, offset = (
        config.count("attn_layer_period", default=8),
        config.count("attn_layer_offset", default=4, least=0),
    )
    every, start = (
        config.count("expert_layer_period", default=2),
        config.count("expert_layer_offset", default=1, least=0),
    )
    count = config.count("num_experts", default=16)
    moe: Experts | None = None
    if count > 1:
        moe = experts(
            of.hidden,
            of.width,
            of.activation,
            count=count,
            per_token=config.count("num_experts_per_tok", default=2),
            prefix="feed_forward",
            router="router",
        )
    config.ignore("num_experts_per_tok", "sliding_window")
    dense = gated_mlp(of.hidden, of.width, of.activation, prefix="feed_forward")
    mixers: dict[str, Mixer] = {
        "attention": attention(of, position="none"),
        "mamba": _mamba(config, of.hidden),
    }
    parts: dict[str, FeedForward] = {"": dense, "_experts": moe or dense}
    norms = (
        ("pre_mixer", rms("input_layernorm", of.hidden)),
        ("pre_feedforward", rms("pre_ff_layernorm", of.hidden)),
    )
    kinds = {
        f"{name}{end}": Block(name=f"{name}{end}", mixer=mixer, feedforward=part, norms=norms)
        for name, mixer in mixers.items()
        for end, part in parts.items()
    }
    order = [
        f"{'attention' if index % period == offset else 'mamba'}{'_experts' if index % every == start else ''}"
        for index in range(of.layers)
    ]
    final = rms(f"{root}.final_layernorm", of.hidden)
    return decoder(config, of, kinds, order, root=root, head=head, final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
