"""Llama 4: chunked attention on three layers of four, experts with a shared one, a vision tower."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.nested import text_part, vision_part
from loadmaster.models.spec import Linear, ModelSpec
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/llama4/modeling_llama4.py)."""
    tower, head = text_part(config, "llama4_text", root="language_model.model", head="language_model.lm_head")
    vision = vision_part(config, "llama4_vision_model", root="vision_model")
    inputs = vision.linears[-1].outputs
    bridge = Linear(name="multi_modal_projector.linear_1", inputs=inputs, outputs=tower.hidden)
    config.report_unknown()
    return assemble(config, [replace(vision, linears=(*vision.linears, bridge)), tower], head)
