"""SigLIP's vision tower, as Gemma 3 nests it."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.spec import ModelSpec, Tower
from loadmaster.models.vision import clip_tower

DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16,
}  # fmt: skip
"""What SiglipVisionConfig of transformers 5 fills in."""


def vision(config: Config, root: str) -> Tower:
    """The tower without its pooling head (transformers: models/siglip/modeling_siglip.py)."""
    if config.flag("vision_use_head", default=False):
        config.warnings.append("the pooling head of SigLIP's vision tower is not counted")
    return clip_tower(
        config, root, class_token=False, first_norm=False, patch_bias=True, activation="gelu_pytorch_tanh"
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [vision(config, "vision_model")], None)
