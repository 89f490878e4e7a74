"""Pixtral's vision tower: gated feed-forward, RMS norms, rotary positions in two dimensions."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import attention, encoder_shape, gated_mlp, join, rms
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, ModelSpec, Tower
from loadmaster.models.vision import patch_weight, patches, pixels

DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 1024, "patch_size": 16,
}  # fmt: skip
"""What PixtralVisionConfig of transformers 5 fills in."""


def vision(config: Config, root: str) -> Tower:
    """The tower (transformers: models/pixtral/modeling_pixtral.py); its tokens are those of the largest image."""
    of = encoder_shape(
        config.count("hidden_size"),
        config.layers("num_hidden_layers"),
        config.count("num_attention_heads"),
        config.count("intermediate_size"),
        config.text("hidden_act", default="gelu"),
        head_dim=config.maybe("head_dim"),
    )
    block = Block(
        mixer=attention(of, prefix="attention", causal=False, block_mask=True),
        feedforward=gated_mlp(of.hidden, of.width, of.activation, prefix="feed_forward"),
        norms=(
            ("pre_mixer", rms("attention_norm", of.hidden)),
            ("pre_feedforward", rms("ffn_norm", of.hidden)),
        ),
    )
    tokens = patches(config)
    extra = patch_weight(config, join(root, "patch_conv"), of.hidden, bias=False)
    config.ignore("vocab_size", "projection_dim")
    config.report_unknown()
    return Tower(
        name="vision",
        hidden=of.hidden,
        prefix=join(root, "transformer.layers"),
        blocks=(block,),
        layout=(0,) * of.layers,
        norms=(("embedding", rms(join(root, "ln_pre"), of.hidden)),),
        extra=extra,
        tokens=tokens,
        input_values=pixels(config),
        modality="vision",
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [vision(config, "")], None)
