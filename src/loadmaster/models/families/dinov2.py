"""DINOv2: ViT with a scale on each branch, and a packed SwiGLU in the giant size."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, attention, gated_mlp, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.families.vit import classifier
from loadmaster.models.spec import Block, FeedForward, ModelSpec, Parameter, Tower
from loadmaster.models.vision import patch_weight, patches, pixels, vision_shape


def _feedforward(config: Config, hidden: int, width: int, activation: str) -> FeedForward:
    swiglu = config.flag("use_swiglu_ffn", default=False)
    packed = config.fields.get("mlp")
    if swiglu:
        # Dinov2SwiGLUFFN: two thirds of the width, up to a multiple of eight.
        width = (int(width * 2 / 3) + 7) // 8 * 8
    if swiglu or (isinstance(packed, str) and "swiglu" in packed.lower()):
        return gated_mlp(hidden, width, "silu", bias=True)
    return plain_mlp(hidden, width, activation)


def _block(config: Config, of: Shape) -> Block:
    """A layer: attention and feed-forward, each scaled by a vector."""
    return Block(
        mixer=attention(
            of,
            prefix="attention",
            qkv_bias=config.flag("qkv_bias", default=True),
            out_bias=True,
            position="learned",
            causal=False,
            wide_softmax=False,
        ),
        feedforward=_feedforward(config, of.hidden, of.width, of.activation),
        norms=(
            ("pre_mixer", layer_norm("norm1", of.hidden)),
            ("pre_feedforward", layer_norm("norm2", of.hidden)),
        ),
        extra=(
            Parameter(name="layer_scale1.lambda1", shape=(of.hidden,)),
            Parameter(name="layer_scale2.lambda1", shape=(of.hidden,)),
        ),
    )


def read(config: Config) -> ModelSpec:
    """The network and its classifier (transformers: models/dinov2/modeling_dinov2.py)."""
    ratio = config.count("mlp_ratio", default=4)
    if not config.has("intermediate_size"):
        hidden = config.count("hidden_size")
        config.fields = {**config.fields, "intermediate_size": hidden * ratio}
    of = vision_shape(config, "gelu")
    tokens = patches(config) + 1
    root = "dinov2"
    block = _block(config, of)
    config.ignore(
        "attention_bias", "mlp_bias", "layer_scale", "layerscale_value", "drop_path_rate", "use_mask_token"
    )
    config.ignore("apply_layernorm", "reshape_hidden_states")
    extra = (
        Parameter(name=f"{root}.embeddings.cls_token", shape=(1, 1, of.hidden)),
        Parameter(name=f"{root}.embeddings.mask_token", shape=(1, of.hidden)),
        Parameter(
            name=f"{root}.embeddings.position_embeddings", shape=(1, tokens, of.hidden), role="position"
        ),
        *patch_weight(config, f"{root}.embeddings.patch_embeddings.projection", of.hidden, bias=True),
    )
    # The classifier reads the class token beside the mean of the patches: twice the width.
    head = classifier(config, 2 * of.hidden)
    config.report_unknown()
    tower = Tower(
        name="vision",
        hidden=of.hidden,
        prefix=f"{root}.encoder.layer",
        blocks=(block,),
        layout=(0,) * of.layers,
        norms=(("final", layer_norm(f"{root}.layernorm", of.hidden)),),
        extra=extra,
        tokens=tokens,
        input_values=pixels(config),
        modality="vision",
    )
    return assemble(config, [tower], head)
