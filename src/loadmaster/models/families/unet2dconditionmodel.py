"""The UNet of Stable Diffusion 1, 2 and XL: residual blocks and cross-attention at halving planes, and back."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import layer_norm
from loadmaster.models.config import Config
from loadmaster.models.diffusion import (
    conv,
    feedforward,
    group_norm,
    image_attention,
    per_level,
    plane,
    resnet,
    two_step,
)
from loadmaster.models.spec import Block, Convolution, Linear, ModelSpec, Tower

_DOWN = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}
_UP = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}
_CROSS_DOWN = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)
_CROSS_UP = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3


class _Levels:
    """The numbers of each level, from the widest plane to the narrowest."""

    def __init__(self, config: Config) -> None:
        self.channels = config.counts("block_out_channels", least=1)
        count = len(self.channels)
        self.resnets = per_level(config, "layers_per_block", count, 2, 32)
        # A known misnomer: attention_head_dim is the number of heads (diffusers issue 2011).
        self.heads = per_level(config, "attention_head_dim", count, 8)
        if config.has("num_attention_heads"):
            self.heads = per_level(config, "num_attention_heads", count, 8)
        self.depth = per_level(config, "transformer_layers_per_block", count, 1, 256)
        self.cross = config.count("cross_attention_dim", default=1280)
        self.linear = config.flag("use_linear_projection", default=False)
        self.time = 4 * self.channels[0]
        down = config.texts("down_block_types", length=count, choices=tuple(_DOWN)) or _CROSS_DOWN
        up = config.texts("up_block_types", length=count, choices=tuple(_UP)) or _CROSS_UP
        if len(down) != count or len(up) != count:
            raise config.fault("down_block_types", f"a list of {count} block types, one a level")
        self.down, self.up = [_DOWN[name] for name in down], [_UP[name] for name in up]
        for width, heads in zip(self.channels, self.heads, strict=True):
            if width % heads:
                raise config.fault("block_out_channels", f"multiples of the number of heads ({heads})")


def _transformer(levels: _Levels, name: str, level: int, scale: int) -> list[Block]:
    width, heads = levels.channels[level], levels.heads[level]
    place = f"{name}.transformer_blocks.{{}}"
    ends: tuple[tuple[Convolution, ...], tuple[Linear, ...]]
    if levels.linear:
        pair = tuple(
            Linear(name=f"{name}.proj_{end}", inputs=width, outputs=width, bias=True) for end in ("in", "out")
        )
        ends = ((), pair)
    else:
        ends = (tuple(conv(f"{name}.proj_{end}", width, width, 1) for end in ("in", "out")), ())
    around = Block(
        name="transformer_ends",
        norms=(("pre_mixer", group_norm(f"{name}.norm", width)),),
        convolutions=ends[0],
        linears=ends[1],
        scale=scale,
    )
    inner = Block(
        name="transformer",
        mixer=image_attention(f"{place}.attn1", width, heads),
        cross=image_attention(f"{place}.attn2", width, heads, keys_from=levels.cross),
        feedforward=feedforward(f"{place}.ff", width, gated=True),
        norms=(
            ("pre_mixer", layer_norm(f"{place}.norm1", width)),
            ("pre_cross", layer_norm(f"{place}.norm2", width)),
            ("pre_feedforward", layer_norm(f"{place}.norm3", width)),
        ),
        scale=scale,
    )
    return [around, *[inner] * levels.depth[level]]


def _down(levels: _Levels) -> list[Block]:
    blocks = []
    before = levels.channels[0]
    for level, width in enumerate(levels.channels):
        scale = 2**level
        for index in range(levels.resnets[level]):
            name = f"down_blocks.{level}.resnets.{index}"
            blocks.append(resnet(name, before if index == 0 else width, width, scale, levels.time))
            if levels.down[level]:
                blocks += _transformer(levels, f"down_blocks.{level}.attentions.{index}", level, scale)
        if level < len(levels.channels) - 1:
            shrink = conv(f"down_blocks.{level}.downsamplers.0.conv", width, width, stride=2)
            blocks.append(Block(name="downsample", convolutions=(shrink,), scale=scale))
        before = width
    return blocks


def _middle(levels: _Levels) -> list[Block]:
    level = len(levels.channels) - 1
    width, scale = levels.channels[-1], 2**level
    first, last = (resnet(f"mid_block.resnets.{index}", width, width, scale, levels.time) for index in (0, 1))
    return [first, *_transformer(levels, "mid_block.attentions.0", level, scale), last]


def _up(levels: _Levels) -> list[Block]:
    blocks = []
    widths = levels.channels[::-1]
    before = widths[0]
    for step, width in enumerate(widths):
        level = len(widths) - 1 - step
        skip = widths[min(step + 1, len(widths) - 1)]
        count = levels.resnets[level] + 1
        for index in range(count):
            # Each residual block also reads what the same plane gave on the way down.
            inputs = (before if index == 0 else width) + (skip if index == count - 1 else width)
            blocks.append(resnet(f"up_blocks.{step}.resnets.{index}", inputs, width, 2**level, levels.time))
            if levels.up[step]:
                blocks += _transformer(levels, f"up_blocks.{step}.attentions.{index}", level, 2**level)
        if level:
            grow = conv(f"up_blocks.{step}.upsamplers.0.conv", width, width)
            blocks.append(Block(name="upsample", convolutions=(grow,), scale=2 ** (level - 1)))
        before = width
    return blocks


def component(config: Config, name: str) -> Tower:
    """The UNet as a tower (diffusers: models/unets/unet_2d_condition.py)."""
    levels = _Levels(config)
    first = levels.channels[0]
    linears = list(two_step("time_embedding", first, levels.time))
    if config.text("addition_embed_type", default="none") == "text_time":
        linears += two_step(
            "add_embedding", config.count("projection_class_embeddings_input_dim"), levels.time
        )
    config.ignore(
        "addition_time_embed_dim", "norm_num_groups", "center_input_sample", "flip_sin_to_cos", "freq_shift"
    )
    config.ignore(
        "downsample_padding", "mid_block_scale_factor", "norm_eps", "upcast_attention", "text_encoder", "vae"
    )
    sequence = [*_down(levels), *_middle(levels), *_up(levels)]
    blocks, layout = fold(sequence)
    inputs, outputs = config.count("in_channels", default=4), config.count("out_channels", default=4)
    tower = Tower(
        name=name,
        hidden=first,
        blocks=blocks,
        layout=layout,
        norms=(("final", group_norm("conv_norm_out", first)),),
        linears=tuple(linears),
        convolutions=(conv("conv_in", inputs, first), conv("conv_out", first, outputs)),
        modality="image_latent",
        plane=plane(config),
    )
    config.report_unknown()
    return tower


def fold(sequence: list[Block]) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Blocks in the order they run: neighbours that are the same object are one block with several places."""
    blocks: list[Block] = []
    layout = []
    for block in sequence:
        if not blocks or blocks[-1] is not block:
            blocks.append(block)
        layout.append(len(blocks) - 1)
    return tuple(blocks), tuple(layout)


def read(config: Config) -> ModelSpec:
    """The UNet alone."""
    return assemble(config, [component(config, "unet")], None)
