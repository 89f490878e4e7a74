"""The transformer of CogVideoX: text and video tokens in one sequence, shifted by the time step."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import layer_norm
from loadmaster.models.config import Config
from loadmaster.models.diffusion import feedforward, image_attention
from loadmaster.models.spec import Block, Convolution, Linear, ModelSpec, Tower
from loadmaster.records import replace


def _block(width: int, heads: int, time: int) -> Block:
    size = width // heads
    attention = replace(
        image_attention("attn1", width, heads, bias=True),
        query_norm=layer_norm("attn1.norm_q", size),
        key_norm=layer_norm("attn1.norm_k", size),
    )
    # Each norm's shift, scale and gate for video and for text: six vectors of the width.
    shifts = [Linear(name=f"norm{part}.linear", inputs=time, outputs=6 * width, bias=True) for part in (1, 2)]
    return Block(
        modulated=True,
        mixer=attention,
        feedforward=feedforward("ff", width),
        norms=(
            ("pre_mixer", layer_norm("norm1.norm", width)),
            ("pre_feedforward", layer_norm("norm2.norm", width)),
        ),
        linears=tuple(shifts),
    )


def component(config: Config, name: str) -> Tower:
    """The transformer as a tower (diffusers: models/transformers/cogvideox_transformer_3d.py)."""
    heads, size = (
        config.count("num_attention_heads", default=30),
        config.count("attention_head_dim", default=64),
    )
    width, layers = heads * size, config.layers("num_layers")
    channels, patch = config.count("in_channels", default=16), config.count("patch_size", default=2)
    outputs, time = config.count("out_channels", default=16), config.count("time_embed_dim", default=512)
    config.ignore("max_text_seq_length", "sample_frames", "sample_height", "sample_width", "attention_bias")
    config.ignore(
        "temporal_compression_ratio", "use_rotary_positional_embeddings", "freq_shift", "flip_sin_to_cos"
    )
    linears = (
        Linear(name="patch_embed.text_proj", inputs=config.count("text_embed_dim"), outputs=width, bias=True),
        Linear(name="time_embedding.linear_1", inputs=width, outputs=time, bias=True),
        Linear(name="time_embedding.linear_2", inputs=time, outputs=time, bias=True),
        Linear(name="norm_out.linear", inputs=time, outputs=2 * width, bias=True),
        Linear(name="proj_out", inputs=width, outputs=patch**2 * outputs, bias=True),
    )
    cut = Convolution(
        name="patch_embed.proj", inputs=channels, outputs=width, kernel=(patch, patch), stride=patch
    )
    config.report_unknown()
    return Tower(
        name=name,
        hidden=width,
        prefix="transformer_blocks",
        blocks=(_block(width, heads, time),),
        layout=(0,) * layers,
        norms=(("final", layer_norm("norm_final", width)), ("out", layer_norm("norm_out.norm", width))),
        linears=linears,
        convolutions=(cut,),
        modality="image_latent",
    )


def read(config: Config) -> ModelSpec:
    """The transformer alone."""
    return assemble(config, [component(config, "transformer")], None)
