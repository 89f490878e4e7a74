"""The transformer of FLUX.1: blocks with separate matrices for image and text, then blocks that share them."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.diffusion import (
    TIME_CHANNELS,
    context_feedforward,
    feedforward,
    joint_attention,
    modulation,
    two_step,
)
from loadmaster.models.spec import Block, Linear, ModelSpec, Tower
from loadmaster.records import replace


def _double(width: int, heads: int) -> Block:
    attention, added, norms = joint_attention("attn", width, heads, normed=True)
    shifts = [modulation(name, width, 6) for name in ("norm1", "norm1_context")]
    return Block(
        modulated=True,
        name="double",
        mixer=attention,
        feedforward=feedforward("ff", width),
        norms=norms,
        linears=(*shifts, *added, *context_feedforward(width)),
    )


def _single(width: int, heads: int) -> Block:
    attention, _, _ = joint_attention("attn", width, heads, normed=True, context=False)
    inner = 4 * width
    # Attention and feed-forward share the output matrix.
    output = Linear(name="proj_out", inputs=width + inner, outputs=width, bias=True)
    return Block(
        modulated=True,
        name="single",
        mixer=replace(attention, output=output),
        linears=(
            modulation("norm", width, 3),
            Linear(name="proj_mlp", inputs=width, outputs=inner, bias=True, role="mlp"),
        ),
        parallel=True,
    )


def component(config: Config, name: str) -> tuple[Tower, Tower]:
    """The two stacks as towers (diffusers: models/transformers/transformer_flux.py)."""
    heads, size = (
        config.count("num_attention_heads", default=24),
        config.count("attention_head_dim", default=128),
    )
    width = heads * size
    channels = config.count("in_channels", default=64)
    pooled = config.count("pooled_projection_dim", default=768)
    linears = [
        Linear(name="x_embedder", inputs=channels, outputs=width, bias=True),
        Linear(
            name="context_embedder",
            inputs=config.count("joint_attention_dim", default=4096),
            outputs=width,
            bias=True,
        ),
        *two_step("time_text_embed.timestep_embedder", TIME_CHANNELS, width),
        *two_step("time_text_embed.text_embedder", pooled, width),
    ]
    if config.flag("guidance_embeds", default=False):
        linears += two_step("time_text_embed.guidance_embedder", TIME_CHANNELS, width)
    patch = config.count("patch_size", default=1)
    outputs = config.maybe("out_channels") or channels
    config.ignore("mlp_ratio", "vae", "text_encoder", "text_encoder_2")
    layers, singles = config.layers("num_layers"), config.layers("num_single_layers")
    double = Tower(
        name=name,
        hidden=width,
        prefix="transformer_blocks",
        blocks=(_double(width, heads),),
        layout=(0,) * layers,
        linears=tuple(linears),
        modality="image_latent",
    )
    single = Tower(
        name=f"{name}_single",
        hidden=width,
        prefix="single_transformer_blocks",
        blocks=(_single(width, heads),),
        layout=(0,) * singles,
        linears=(
            modulation("norm_out", width, 2),
            Linear(name="proj_out", inputs=width, outputs=patch**2 * outputs, bias=True),
        ),
        modality="image_latent",
    )
    config.report_unknown()
    return double, single


def read(config: Config) -> ModelSpec:
    """The transformer alone."""
    return assemble(config, component(config, "transformer"), None)
