"""Mistral Small 3.1 and later: Pixtral's vision tower, a merger of patches, Mistral's decoder."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import rms
from loadmaster.models.config import Config
from loadmaster.models.nested import text_part, vision_part
from loadmaster.models.spec import Linear, ModelSpec
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/mistral3/modeling_mistral3.py)."""
    tower, head = text_part(config, "mistral")
    vision = vision_part(config, "pixtral")
    bias = config.flag("multimodal_projector_bias", default=False)
    merge = config.count("spatial_merge_size", default=2)
    config.ignore("vision_feature_layer")
    place = "model.multi_modal_projector"
    wide = vision.hidden
    bridge = (
        Linear(name=f"{place}.patch_merger.merging_layer", inputs=wide * merge**2, outputs=wide),
        Linear(name=f"{place}.linear_1", inputs=wide, outputs=tower.hidden, bias=bias),
        Linear(name=f"{place}.linear_2", inputs=tower.hidden, outputs=tower.hidden, bias=bias),
    )
    config.report_unknown()
    norms = (*vision.norms, ("projector", rms(f"{place}.norm", wide)))
    return assemble(config, [replace(vision, linears=bridge, norms=norms), tower], head)
