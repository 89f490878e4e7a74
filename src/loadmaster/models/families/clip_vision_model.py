"""CLIP's vision tower, as LLaVA nests it."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.spec import ModelSpec, Tower
from loadmaster.models.vision import clip_tower

DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip
"""What CLIPVisionConfig of transformers 5 fills in."""


def vision(config: Config, root: str) -> Tower:
    """The tower (transformers: models/clip/modeling_clip.py)."""
    config.ignore("projection_dim", "vocab_size")
    return clip_tower(
        config, root, class_token=True, first_norm=True, patch_bias=False, activation="quick_gelu"
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [vision(config, "")], None)
