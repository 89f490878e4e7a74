"""LLaVA 1.5: CLIP's vision tower, two linear layers, any decoder."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.nested import text_part, vision_part
from loadmaster.models.spec import Linear, ModelSpec
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/llava/modeling_llava.py)."""
    tower, head = text_part(config, "llama")
    vision = vision_part(config, "clip_vision_model")
    bias = config.flag("multimodal_projector_bias", default=True)
    layers = config.value("vision_feature_layer", default=-2)
    count = len(layers) if isinstance(layers, list) and layers else 1
    place = "model.multi_modal_projector"
    bridge = (
        Linear(name=f"{place}.linear_1", inputs=vision.hidden * count, outputs=tower.hidden, bias=bias),
        Linear(name=f"{place}.linear_2", inputs=tower.hidden, outputs=tower.hidden, bias=bias),
    )
    config.report_unknown()
    return assemble(config, [replace(vision, linears=bridge), tower], head)
