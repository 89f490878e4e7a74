"""The transformer of Stable Diffusion 3 and 3.5 (MM-DiT, arXiv:2403.03206)."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.diffusion import (
    TIME_CHANNELS,
    context_feedforward,
    feedforward,
    image_attention,
    joint_attention,
    modulation,
    two_step,
)
from loadmaster.models.spec import Block, Convolution, Linear, ModelSpec, Norm, Tower
from loadmaster.records import replace


def _block(width: int, heads: int, *, normed: bool, dual: bool, last: bool) -> Block:
    attention, added, norms = joint_attention("attn", width, heads, context_out=not last, normed=normed)
    linears = [
        modulation("norm1", width, 9 if dual else 6),
        modulation("norm1_context", width, 2 if last else 6),
    ]
    linears += added
    if dual:
        second = image_attention("attn2", width, heads, bias=True)
        linears += [replace(linear, role="attention") for linear in (*second.projections, second.output)]
        if normed:
            size = width // heads
            norms = (
                *norms,
                *(
                    (f"second_{side}", Norm(kind="rms", size=size, name=f"attn2.norm_{side}"))
                    for side in "qk"
                ),
            )
    if not last:
        linears += context_feedforward(width)
    return Block(
        modulated=True,
        name=f"joint{'_dual' if dual else ''}{'_last' if last else ''}",
        mixer=attention,
        feedforward=feedforward("ff", width),
        norms=norms,
        linears=tuple(linears),
    )


def component(config: Config, name: str) -> Tower:
    """The transformer as a tower (diffusers: models/transformers/transformer_sd3.py)."""
    heads, size = (
        config.count("num_attention_heads", default=18),
        config.count("attention_head_dim", default=64),
    )
    width, layers = heads * size, config.layers("num_layers")
    patch = config.count("patch_size", default=2)
    channels = config.count("in_channels", default=16)
    outputs = config.count("out_channels", default=16)
    normed = config.text("qk_norm", default="none") == "rms_norm"
    dual = set(config.counts("dual_attention_layers", default=()))
    caption = config.count("caption_projection_dim", default=1152)
    if caption != width:
        raise config.fault("caption_projection_dim", f"{width}, the width of the transformer")
    kinds: dict[tuple[bool, bool], int] = {}
    blocks: list[Block] = []
    layout = []
    for index in range(layers):
        key = (index in dual, index == layers - 1)
        if key not in kinds:
            kinds[key] = len(blocks)
            blocks.append(_block(width, heads, normed=normed, dual=key[0], last=key[1]))
        layout.append(kinds[key])
    side = config.count("sample_size", default=128)
    config.ignore("pos_embed_max_size")
    linears = (
        *two_step("time_text_embed.timestep_embedder", TIME_CHANNELS, width),
        *two_step(
            "time_text_embed.text_embedder", config.count("pooled_projection_dim", default=2048), width
        ),
        Linear(
            name="context_embedder",
            inputs=config.count("joint_attention_dim", default=4096),
            outputs=width,
            bias=True,
        ),
        modulation("norm_out", width, 2),
        Linear(name="proj_out", inputs=width, outputs=patch**2 * outputs, bias=True),
    )
    cut = Convolution(
        name="pos_embed.proj", inputs=channels, outputs=width, kernel=(patch, patch), stride=patch
    )
    config.report_unknown()
    return Tower(
        name=name,
        hidden=width,
        prefix="transformer_blocks",
        blocks=tuple(blocks),
        layout=tuple(layout),
        linears=linears,
        convolutions=(cut,),
        tokens=(side // patch) ** 2,
        modality="image_latent",
        plane=(side, side),
    )


def read(config: Config) -> ModelSpec:
    """The transformer alone."""
    return assemble(config, [component(config, "transformer")], None)
