"""The image autoencoder of Stable Diffusion and FLUX: convolutions, one attention in the middle of each half."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.diffusion import conv, group_norm, image_attention, per_level, plane, resnet
from loadmaster.models.families.unet2dconditionmodel import fold
from loadmaster.models.spec import Block, ModelSpec, Tower
from loadmaster.records import replace


def _middle(side: str, width: int, scale: int) -> list[Block]:
    place = f"{side}.mid_block.attentions.0"
    # One head as wide as the channels (diffusers: UNetMidBlock2D with attention_head_dim = channels).
    attention = Block(
        name="attention",
        mixer=image_attention(place, width, 1, bias=True),
        norms=(("pre_mixer", group_norm(f"{place}.group_norm", width)),),
        scale=scale,
    )
    first, last = (resnet(f"{side}.mid_block.resnets.{index}", width, width, scale, None) for index in (0, 1))
    return [first, attention, last]


def _encoder(channels: tuple[int, ...], layers: int) -> list[Block]:
    blocks = []
    before = channels[0]
    for level, width in enumerate(channels):
        for index in range(layers):
            name = f"encoder.down_blocks.{level}.resnets.{index}"
            blocks.append(resnet(name, before if index == 0 else width, width, 2**level, None))
        if level < len(channels) - 1:
            shrink = conv(f"encoder.down_blocks.{level}.downsamplers.0.conv", width, width, stride=2)
            blocks.append(Block(name="downsample", convolutions=(shrink,), scale=2**level))
        before = width
    return [*blocks, *_middle("encoder", channels[-1], 2 ** (len(channels) - 1))]


def _decoder(channels: tuple[int, ...], layers: int) -> list[Block]:
    blocks = _middle("decoder", channels[-1], 2 ** (len(channels) - 1))
    before = channels[-1]
    for step, width in enumerate(channels[::-1]):
        level = len(channels) - 1 - step
        for index in range(layers + 1):
            name = f"decoder.up_blocks.{step}.resnets.{index}"
            blocks.append(resnet(name, before if index == 0 else width, width, 2**level, None))
        if level:
            grow = conv(f"decoder.up_blocks.{step}.upsamplers.0.conv", width, width)
            blocks.append(Block(name="upsample", convolutions=(grow,), scale=2 ** (level - 1)))
        before = width
    return blocks


def component(config: Config, name: str) -> tuple[Tower, Tower]:
    """Encoder and decoder as two towers (diffusers: models/autoencoders/autoencoder_kl.py)."""
    channels = config.counts("block_out_channels", least=1)
    layers = per_level(config, "layers_per_block", len(channels), 1, 32)[0]
    latent = config.count("latent_channels", default=4)
    inputs, outputs = config.count("in_channels", default=3), config.count("out_channels", default=3)
    config.texts("down_block_types", length=len(channels), choices=("DownEncoderBlock2D",))
    config.texts("up_block_types", length=len(channels), choices=("UpDecoderBlock2D",))
    config.ignore("norm_num_groups", "downscale", "shift_factor", "mid_block_add_attention")
    front = [conv("encoder.conv_in", inputs, channels[0]), conv("encoder.conv_out", channels[-1], 2 * latent)]
    back = [conv("decoder.conv_in", latent, channels[-1]), conv("decoder.conv_out", channels[0], outputs)]
    if config.flag("use_quant_conv", default=True):
        front.append(conv("quant_conv", 2 * latent, 2 * latent, 1))
    if config.flag("use_post_quant_conv", default=True):
        back.append(conv("post_quant_conv", latent, latent, 1))
    size = plane(config)
    blocks, layout = fold(_encoder(channels, layers))
    encoder = Tower(
        name=f"{name}_encoder",
        hidden=channels[0],
        blocks=blocks,
        layout=layout,
        norms=(("final", group_norm("encoder.conv_norm_out", channels[-1])),),
        convolutions=tuple(front),
        modality="image",
        plane=size,
    )
    blocks, layout = fold(_decoder(channels, layers))
    decoder = replace(
        encoder,
        name=f"{name}_decoder",
        blocks=blocks,
        layout=layout,
        norms=(("final", group_norm("decoder.conv_norm_out", channels[0])),),
        convolutions=tuple(back),
    )
    config.report_unknown()
    return encoder, decoder


def read(config: Config) -> ModelSpec:
    """The autoencoder alone."""
    return assemble(config, component(config, "vae"), None)
