"""Parts of image pipelines (diffusers): residual blocks, transformer blocks, embedders of time and text."""

from __future__ import annotations

from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Convolution, Linear, Mlp, Norm
from loadmaster.records import replace

LEVEL_LIMIT = 16
"""Most levels of a UNet: each halves the plane, so sixteen would need an image of 65,536 pixels a side."""
TIME_CHANNELS = 256
"""Sine and cosine values of a time step in the transformers (diffusers: CombinedTimestepTextProjEmbeddings)."""


def group_norm(name: str, size: int) -> Norm:
    """torch.nn.GroupNorm with weight and bias."""
    return Norm(kind="group", size=size, name=name, bias=True, native=True)


def conv(name: str, inputs: int, outputs: int, side: int = 3, stride: int = 1) -> Convolution:
    """A square convolution with a bias."""
    return Convolution(name=name, inputs=inputs, outputs=outputs, kernel=(side, side), stride=stride)


def resnet(name: str, inputs: int, outputs: int, scale: int, time: int | None) -> Block:
    """ResnetBlock2D (diffusers: models/resnet.py): two convolutions, a shift by the time step, a 1 × 1 shortcut where
    the channels change."""
    layers = [conv(f"{name}.conv1", inputs, outputs), conv(f"{name}.conv2", outputs, outputs)]
    if inputs != outputs:
        layers.append(conv(f"{name}.conv_shortcut", inputs, outputs, 1))
    return Block(
        name="resnet",
        norms=(
            ("pre_first", group_norm(f"{name}.norm1", inputs)),
            ("pre_second", group_norm(f"{name}.norm2", outputs)),
        ),
        linears=(Linear(name=f"{name}.time_emb_proj", inputs=time, outputs=outputs, bias=True),)
        if time
        else (),
        convolutions=tuple(layers),
        scale=scale,
    )


def image_attention(
    name: str,
    width: int,
    heads: int,
    *,
    keys_from: int | None = None,
    bias: bool = False,
    head_dim: int | None = None,
) -> Attention:
    """diffusers' Attention: to_q, to_k, to_v, to_out; ``keys_from`` is the width of another tower's output."""
    size = head_dim or width // heads
    inner = heads * size
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=size,
        value_dim=size,
        projections=(
            Linear(name=f"{name}.to_q", inputs=width, outputs=inner, bias=bias),
            Linear(name=f"{name}.to_k", inputs=keys_from or width, outputs=inner, bias=bias),
            Linear(name=f"{name}.to_v", inputs=keys_from or width, outputs=inner, bias=bias),
        ),
        output=Linear(name=f"{name}.to_out.0", inputs=inner, outputs=width, bias=True),
        position="none",
        causal=False,
        cross=keys_from is not None,
    )


def two_step(name: str, inputs: int, outputs: int) -> tuple[Linear, Linear]:
    """An embedder of two linear layers."""
    return (
        Linear(name=f"{name}.linear_1", inputs=inputs, outputs=outputs, bias=True),
        Linear(name=f"{name}.linear_2", inputs=outputs, outputs=outputs, bias=True),
    )


def feedforward(name: str, width: int, ratio: int = 4, *, gated: bool = False) -> Mlp:
    """diffusers' FeedForward: GEGLU (gate and value in one matrix) or GELU."""
    inner = ratio * width
    return Mlp(
        width=inner,
        gated=gated,
        activation="gelu" if gated else "gelu_tanh",
        projections=(
            Linear(name=f"{name}.net.0.proj", inputs=width, outputs=inner * (2 if gated else 1), bias=True),
        ),
        output=Linear(name=f"{name}.net.2", inputs=inner, outputs=width, bias=True),
    )


def context_feedforward(width: int) -> tuple[Linear, ...]:
    """The text's own feed-forward in a joint block."""
    other = feedforward("ff_context", width)
    return tuple(replace(linear, role="mlp") for linear in (*other.projections, other.output))


def joint_attention(
    name: str, width: int, heads: int, *, context_out: bool = True, normed: bool = False, context: bool = True
) -> tuple[Attention, tuple[Linear, ...], tuple[tuple[str, Norm], ...]]:
    """Attention over image and text together (MM-DiT): the attention, the text's own matrices, the text's norms."""
    plain = image_attention(name, width, heads, bias=True)
    size = width // heads
    norms: tuple[tuple[str, Norm], ...] = ()
    if normed:
        plain = _with_norms(plain, name, size)
    if not context:
        return plain, (), ()
    names: tuple[str, ...] = ("add_k_proj", "add_v_proj", "add_q_proj")
    if context_out:
        names = (*names, "to_add_out")
    added = [
        Linear(name=f"{name}.{part}", inputs=width, outputs=width, bias=True, role="attention")
        for part in names
    ]
    if normed:
        norms = tuple(
            (f"added_{side}", Norm(kind="rms", size=size, name=f"{name}.norm_added_{side}"))
            for side in ("q", "k")
        )
    return plain, tuple(added), norms


def _with_norms(attention: Attention, name: str, size: int) -> Attention:
    return replace(
        attention,
        query_norm=Norm(kind="rms", size=size, name=f"{name}.norm_q"),
        key_norm=Norm(kind="rms", size=size, name=f"{name}.norm_k"),
    )


def modulation(name: str, width: int, parts: int) -> Linear:
    """Shift, scale and gate made of the time step: ``parts`` vectors of the width (adaLN, arXiv:2212.09748 §3.2)."""
    return Linear(name=f"{name}.linear", inputs=width, outputs=parts * width, bias=True)


def per_level(config: Config, name: str, levels: int, default: int, most: int = 1000) -> tuple[int, ...]:
    """A field that is one number for all levels of a UNet, or a list with one each."""
    if not 1 <= levels <= LEVEL_LIMIT:
        raise config.fault("block_out_channels", f"a list of 1 to {LEVEL_LIMIT} widths")
    value = config.value(name, default=default)
    if isinstance(value, (list, tuple)):
        found = config.counts(name, least=1, length=levels)
    else:
        found = (config.count(name, default=default),) * levels
    if max(found) > most:
        raise config.fault(name, f"numbers of at most {most}")
    return found


def plane(config: Config) -> tuple[int, int] | None:
    """The usual height and width, from ``sample_size``."""
    side = config.maybe("sample_size")
    return (side, side) if side else None
