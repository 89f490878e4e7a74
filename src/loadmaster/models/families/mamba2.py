"""Mamba 2: state spaces in heads, computed in chunks."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, rms
from loadmaster.models.config import Config
from loadmaster.models.families.mamba import bare
from loadmaster.models.spec import Block, Head, Linear, ModelSpec, Parameter, StateSpace, Tower


def mixer(config: Config, hidden: int) -> StateSpace:
    """Mamba 2's mixer (arXiv:2405.21060 §7; transformers: models/mamba2/modeling_mamba2.py, Mamba2Mixer)."""
    inner = config.count("expand", default=2) * hidden
    head_dim = config.count("head_dim", default=64)
    heads = config.count("num_heads", default=max(1, inner // head_dim))
    if heads * head_dim != inner:
        raise config.fault(
            "num_heads", f"{inner // head_dim}, because heads × head_dim is the inner width {inner}"
        )
    state, groups = config.count("state_size", default=128), config.count("n_groups", default=8)
    kernel = config.count("conv_kernel", default=4)
    bias = config.flag("use_bias", default=False)
    channels = inner + 2 * groups * state
    extra = [
        Parameter(name="mixer.dt_bias", shape=(heads,)),
        Parameter(name="mixer.A_log", shape=(heads,)),
        Parameter(name="mixer.D", shape=(heads,)),
        Parameter(name="mixer.conv1d.weight", shape=(channels, 1, kernel)),
    ]
    if config.flag("use_conv_bias", default=True):
        extra.append(Parameter(name="mixer.conv1d.bias", shape=(channels,)))
    return StateSpace(
        kind="mamba2",
        inner=inner,
        state=state,
        conv_kernel=kernel,
        conv_channels=channels,
        heads=heads,
        head_dim=head_dim,
        groups=groups,
        projections=(
            Linear(name="mixer.in_proj", inputs=hidden, outputs=inner + channels + heads, bias=bias),
        ),
        output=Linear(name="mixer.out_proj", inputs=inner, outputs=hidden, bias=bias),
        extra=tuple(extra),
        inner_norms=(("output", rms("mixer.norm", inner)),),
    )


def text(config: Config, root: str = "backbone", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/mamba2/modeling_mamba2.py)."""
    hidden = config.count("hidden_size", "d_model")
    of = bare(config, hidden)
    config.ignore("time_step_rank", "rms_norm", "norm_before_gate", "hidden_act", "intermediate_size")
    block = Block(mixer=mixer(config, hidden), norms=(("pre_mixer", rms("norm", hidden)),))
    final = rms(f"{root}.norm_f", hidden)
    return decoder(config, of, block, root=root, head=head, embedding="embeddings", final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
