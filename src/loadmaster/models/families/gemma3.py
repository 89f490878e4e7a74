"""Gemma 3 with vision: SigLIP's tower, a projection to the decoder's width, Gemma 3's decoder."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import rms
from loadmaster.models.config import Config
from loadmaster.models.nested import text_part, vision_part
from loadmaster.models.spec import Attention, ModelSpec, Parameter, Tower
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/gemma3/modeling_gemma3.py)."""
    tower, head = text_part(config, "gemma3_text")
    vision = vision_part(config, "siglip_vision_model")
    place = "model.multi_modal_projector"
    project = Parameter(name=f"{place}.mm_input_projection_weight", shape=(vision.hidden, tower.hidden))
    norms = (*vision.norms, ("projector", rms(f"{place}.mm_soft_emb_norm", vision.hidden, plus_one=True)))
    config.report_unknown()
    vision = replace(vision, norms=norms, extra=(*vision.extra, project))
    return assemble(config, [vision, _masked(tower)], head)


def _masked(tower: Tower) -> Tower:
    """token_type_ids come with every batch, so masks are made in every step (create_causal_mask_mapping)."""
    blocks = tuple(
        replace(b, mixer=replace(b.mixer, masked=True)) if isinstance(b.mixer, Attention) else b
        for b in tower.blocks
    )
    return replace(tower, blocks=blocks)
