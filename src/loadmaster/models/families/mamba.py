"""Mamba 1: selective state spaces, no attention, no feed-forward."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import Shape, decoder, rms
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, Linear, ModelSpec, Norm, Parameter, StateSpace, Tower


def selective(
    *,
    prefix: str,
    hidden: int,
    inner: int,
    state: int,
    kernel: int,
    rank: int,
    conv_bias: bool,
    bias: bool,
    inner_norms: tuple[tuple[str, Norm], ...] = (),
) -> StateSpace:
    """Mamba's mixer (arXiv:2312.00752 §3.4; transformers: models/mamba/modeling_mamba.py, MambaMixer)."""
    conv: tuple[Parameter, ...] = (Parameter(name=f"{prefix}.conv1d.weight", shape=(inner, 1, kernel)),)
    if conv_bias:
        conv = (*conv, Parameter(name=f"{prefix}.conv1d.bias", shape=(inner,)))
    return StateSpace(
        kind="mamba1",
        inner=inner,
        state=state,
        conv_kernel=kernel,
        conv_channels=inner,
        dt_rank=rank,
        projections=(
            Linear(name=f"{prefix}.in_proj", inputs=hidden, outputs=2 * inner, bias=bias),
            Linear(name=f"{prefix}.x_proj", inputs=inner, outputs=rank + 2 * state),
            Linear(name=f"{prefix}.dt_proj", inputs=rank, outputs=inner, bias=True),
        ),
        output=Linear(name=f"{prefix}.out_proj", inputs=inner, outputs=hidden, bias=bias),
        extra=(
            Parameter(name=f"{prefix}.A_log", shape=(inner, state)),
            Parameter(name=f"{prefix}.D", shape=(inner,)),
            *conv,
        ),
        inner_norms=inner_norms,
    )


def rank(config: Config, name: str, hidden: int) -> int:
    """The step's rank: a number, or ``auto`` for a sixteenth of the width, rounded up."""
    if config.value(name, default="auto") == "auto":
        return -(-hidden // 16)
    return config.count(name)


def bare(config: Config, hidden: int) -> Shape:
    """A shape for networks without attention: its head fields describe nothing."""
    layers = config.layers("num_hidden_layers", "n_layer")
    return Shape(
        hidden=hidden, layers=layers, heads=1, kv_heads=1, head_dim=hidden, width=hidden, activation="silu"
    )


def text(config: Config, root: str = "backbone", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/mamba/modeling_mamba.py)."""
    hidden = config.count("hidden_size", "d_model")
    of = bare(config, hidden)
    inner = config.count("expand", default=2) * hidden
    config.ignore("intermediate_size", "d_inner", "hidden_act")
    mixer = selective(
        prefix="mixer",
        hidden=hidden,
        inner=inner,
        state=config.count("state_size", default=16),
        kernel=config.count("conv_kernel", default=4),
        rank=rank(config, "time_step_rank", hidden),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
    )
    block = Block(mixer=mixer, norms=(("pre_mixer", rms("norm", hidden)),))
    final = rms(f"{root}.norm_f", hidden)
    return decoder(
        config, of, block, root=root, head=head, tied_default=True, embedding="embeddings", final=final
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
