"""The transformer of FLUX.2: as FLUX.1, with one modulation for all blocks, gated feed-forwards, and no biases."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.diffusion import joint_attention
from loadmaster.models.spec import Attention, Block, Linear, Mlp, ModelSpec, Norm, Tower
from loadmaster.records import replace


def _bare(linear: Linear) -> Linear:
    return replace(linear, bias=False)


def _attention(
    name: str, width: int, heads: int
) -> tuple[Attention, list[Linear], tuple[tuple[str, Norm], ...]]:
    attention, added, norms = joint_attention(name, width, heads, normed=True)
    plain = replace(
        attention,
        projections=tuple(_bare(linear) for linear in attention.projections),
        output=_bare(attention.output),
    )
    return plain, [_bare(linear) for linear in added], norms


def _swiglu(name: str, width: int, inner: int) -> Mlp:
    return Mlp(
        width=inner,
        gated=True,
        activation="silu",
        projections=(Linear(name=f"{name}.linear_in", inputs=width, outputs=2 * inner),),
        output=Linear(name=f"{name}.linear_out", inputs=inner, outputs=width),
    )


def _double(width: int, heads: int, inner: int) -> Block:
    attention, added, norms = _attention("attn", width, heads)
    other = _swiglu("ff_context", width, inner)
    text = [replace(linear, role="mlp") for linear in (*other.projections, other.output)]
    return Block(
        modulated=True,
        name="double",
        mixer=attention,
        feedforward=_swiglu("ff", width, inner),
        norms=norms,
        linears=(*added, *text),
    )


def _single(width: int, heads: int, inner: int) -> Block:
    attention, _, _ = _attention("attn", width, heads)
    # One matrix makes queries, keys, values and the feed-forward's two halves; one takes both results back.
    fused = Linear(name="attn.to_qkv_mlp_proj", inputs=width, outputs=3 * width + 2 * inner)
    output = Linear(name="attn.to_out", inputs=width + inner, outputs=width)
    return Block(
        modulated=True,
        name="single",
        mixer=replace(attention, projections=(fused,), output=output),
        parallel=True,
    )


def component(config: Config, name: str) -> tuple[Tower, Tower]:
    """The two stacks as towers (diffusers: models/transformers/transformer_flux2.py)."""
    heads, size = (
        config.count("num_attention_heads", default=48),
        config.count("attention_head_dim", default=128),
    )
    width = heads * size
    inner = int(width * config.number("mlp_ratio", default=3.0))
    channels, time = (
        config.count("in_channels", default=128),
        config.count("timestep_guidance_channels", default=256),
    )
    outputs = config.maybe("out_channels") or channels
    embedders = ["timestep_embedder"]
    if config.flag("guidance_embeds", default=True):
        embedders.append("guidance_embedder")
    linears = [
        Linear(name="x_embedder", inputs=channels, outputs=width),
        Linear(name="context_embedder", inputs=config.count("joint_attention_dim"), outputs=width),
        *(
            Linear(name=f"time_guidance_embed.{part}.linear_{step}", inputs=inputs, outputs=width)
            for part in embedders
            for step, inputs in ((1, time), (2, width))
        ),
        *(
            Linear(name=f"{part}.linear", inputs=width, outputs=parts * width)
            for part, parts in (
                ("double_stream_modulation_img", 6),
                ("double_stream_modulation_txt", 6),
                ("single_stream_modulation", 3),
            )
        ),
    ]
    patch = config.count("patch_size", default=1)
    layers, singles = config.layers("num_layers"), config.layers("num_single_layers")
    config.report_unknown()
    double = Tower(
        name=name,
        hidden=width,
        prefix="transformer_blocks",
        blocks=(_double(width, heads, inner),),
        layout=(0,) * layers,
        linears=tuple(linears),
        modality="image_latent",
    )
    single = Tower(
        name=f"{name}_single",
        hidden=width,
        prefix="single_transformer_blocks",
        blocks=(_single(width, heads, inner),),
        layout=(0,) * singles,
        linears=(
            Linear(name="norm_out.linear", inputs=width, outputs=2 * width),
            Linear(name="proj_out", inputs=width, outputs=patch**2 * outputs),
        ),
        modality="image_latent",
    )
    return double, single


def read(config: Config) -> ModelSpec:
    """The transformer alone."""
    return assemble(config, component(config, "transformer"), None)
