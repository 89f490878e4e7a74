"""CLIP: a text and a vision tower, each with a projection to one space."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.families import clip_text_model, clip_vision_model
from loadmaster.models.spec import Linear, ModelSpec, Parameter
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """Both towers (transformers: models/clip/modeling_clip.py, CLIPModel)."""
    common = config.count("projection_dim", default=512)
    text_config = config.sub("text_config", defaults=clip_text_model.DEFAULTS)
    vision_config = config.sub("vision_config", defaults=clip_vision_model.DEFAULTS)
    text = clip_text_model.encoder(text_config)
    vision = clip_vision_model.vision(vision_config, "vision_model")
    text = replace(
        text,
        linears=(Linear(name="text_projection", inputs=text.hidden, outputs=common),),
        extra=(Parameter(name="logit_scale", shape=()),),
    )
    seen = Linear(name="visual_projection", inputs=vision.hidden, outputs=common)
    config.report_unknown()
    return assemble(config, [text, replace(vision, linears=(seen,))], None)
