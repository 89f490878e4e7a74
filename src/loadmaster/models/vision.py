"""Vision towers that several models share: patches, a class token, positions, plain encoder layers."""

from __future__ import annotations

from typing import Literal

from loadmaster.models.builders import Shape, attention, encoder_shape, join, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, Norm, Parameter, Tower


def patches(config: Config) -> int:
    """Patches of an image: (image side / patch side)², both from the config."""
    return (config.count("image_size") // config.count("patch_size")) ** 2


def pixels(config: Config) -> int:
    """Values of a picture: image side² × channels."""
    return config.count("image_size") ** 2 * config.count("num_channels", default=3)


def patch_weight(config: Config, name: str, hidden: int, *, bias: bool) -> tuple[Parameter, ...]:
    """The convolution that cuts an image into patches."""
    side = config.count("patch_size")
    shape = (hidden, config.count("num_channels", default=3), side, side)
    weight = Parameter(name=f"{name}.weight", shape=shape)
    return (weight, Parameter(name=f"{name}.bias", shape=(hidden,))) if bias else (weight,)


def vision_shape(config: Config, activation: str) -> Shape:
    """The sizes of a vision tower under their usual names."""
    return encoder_shape(
        config.count("hidden_size"),
        config.layers("num_hidden_layers"),
        config.count("num_attention_heads", "attention_heads"),
        config.count("intermediate_size"),
        config.text("hidden_act", default=activation),
    )


def clip_block(of: Shape, *, causal: bool = False) -> Block:
    """The layer of CLIP and SigLIP, of their text towers too (transformers: models/clip/modeling_clip.py)."""
    return Block(
        mixer=attention(
            of, output="out_proj", qkv_bias=True, out_bias=True, position="learned", causal=causal
        ),
        feedforward=plain_mlp(of.hidden, of.width, of.activation),
        norms=(
            ("pre_mixer", layer_norm("layer_norm1", of.hidden)),
            ("pre_feedforward", layer_norm("layer_norm2", of.hidden)),
        ),
    )


def clip_tower(
    config: Config, root: str, *, class_token: bool, first_norm: bool, patch_bias: bool, activation: str
) -> Tower:
    """The vision tower of CLIP (class token, norm in front) or SigLIP (neither)."""
    of = vision_shape(config, activation)
    tokens = patches(config) + (1 if class_token else 0)
    extra = patch_weight(config, join(root, "embeddings.patch_embedding"), of.hidden, bias=patch_bias)
    if class_token:
        extra = (Parameter(name=join(root, "embeddings.class_embedding"), shape=(of.hidden,)), *extra)
    norms: tuple[tuple[str, Norm], ...] = (("final", layer_norm(join(root, "post_layernorm"), of.hidden)),)
    if first_norm:
        # The name is spelt like this in CLIP's code.
        norms = (("embedding", layer_norm(join(root, "pre_layrnorm"), of.hidden)), *norms)
    config.report_unknown()
    return Tower(
        name="vision",
        hidden=of.hidden,
        prefix=join(root, "encoder.layers"),
        blocks=(clip_block(of),),
        layout=(0,) * of.layers,
        embeddings=(
            Embedding(
                name=join(root, "embeddings.position_embedding"),
                role="position",
                rows=tokens,
                width=of.hidden,
            ),
        ),
        norms=norms,
        extra=extra,
        tokens=tokens,
        input_values=pixels(config),
        modality="vision",
    )


Modality = Literal["text", "vision", "audio", "image_latent"]
