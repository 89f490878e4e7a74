"""Llama 4's vision tower, with the adapter that folds four patches into one token."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import attention, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Linear, ModelSpec, Parameter, Tower
from loadmaster.models.vision import patches, vision_shape

DEFAULTS = {
    "hidden_size": 768, "num_hidden_layers": 34, "num_attention_heads": 16, "intermediate_size": 5632,
    "image_size": 448, "patch_size": 14, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}  # fmt: skip
"""What Llama4VisionConfig of transformers 5 fills in."""


def vision(config: Config, root: str) -> Tower:
    """The tower (transformers: models/llama4/modeling_llama4.py, Llama4VisionModel)."""
    of = vision_shape(config, "gelu")
    tokens = patches(config) + 1
    block = Block(
        mixer=attention(of, qkv_bias=True, out_bias=True, causal=False),
        feedforward=plain_mlp(of.hidden, of.width, of.activation),
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", of.hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)),
        ),
    )
    folded = int(of.hidden / config.number("pixel_shuffle_ratio", default=0.5) ** 2)
    inner = config.count("projector_input_dim")
    outer = config.count("projector_output_dim")
    patch = config.count("num_channels", default=3) * config.count("patch_size") ** 2
    config.ignore("vision_output_dim", "multi_modal_projector_bias")
    config.report_unknown()
    return Tower(
        name="vision",
        hidden=of.hidden,
        prefix=f"{root}.model.layers",
        blocks=(block,),
        layout=(0,) * of.layers,
        norms=(
            ("embedding", layer_norm(f"{root}.layernorm_pre", of.hidden)),
            ("final", layer_norm(f"{root}.layernorm_post", of.hidden)),
        ),
        linears=(
            Linear(name=f"{root}.patch_embedding.linear", inputs=patch, outputs=of.hidden),
            Linear(name=f"{root}.vision_adapter.mlp.fc1", inputs=folded, outputs=inner),
            Linear(name=f"{root}.vision_adapter.mlp.fc2", inputs=outer, outputs=outer),
        ),
        extra=(
            Parameter(name=f"{root}.class_embedding", shape=(of.hidden,)),
            Parameter(name=f"{root}.positional_embedding_vlm", shape=(tokens, of.hidden), role="position"),
        ),
        tokens=tokens,
        modality="vision",
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [vision(config, "vision_model")], None)
