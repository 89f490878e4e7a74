"""An image pipeline of diffusers: its components, each a network of its own."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.errors import BadFileError, UnknownNameError
from loadmaster.models import families
from loadmaster.models.assembly import assemble
from loadmaster.models.config import Config
from loadmaster.models.families import clip_text_model, t5
from loadmaster.models.spec import Linear, ModelSpec, Tower
from loadmaster.records import replace


def _towers(config: Config, name: str) -> list[Tower]:
    kind = config.text("_class_name", "model_type")
    config.ignore("model_type", "architectures")
    if kind in ("CLIPTextModel", "CLIPTextModelWithProjection"):
        tower = clip_text_model.encoder(config, name=name)
        if kind.endswith("Projection"):
            size = config.count("projection_dim", default=512)
            tower = replace(
                tower, linears=(Linear(name="text_projection", inputs=tower.hidden, outputs=size),)
            )
        return [tower]
    if kind == "T5EncoderModel":
        return [replace(t5.encoder(config), name=name)]
    family = families.load(kind.lower(), origin=config.path)
    if not hasattr(family, "component"):
        raise UnknownNameError("image pipeline component", kind, hint="no family can nest it in a pipeline")
    found = family.component(config, name)
    return [found] if isinstance(found, Tower) else list(found)


def read(config: Config) -> ModelSpec:
    """All networks of the pipeline; the one that is run at every step is the first."""
    components = config.value("components")
    if not isinstance(components, Mapping) or not components:
        raise BadFileError(config.path, "the pipeline names no components")
    towers: list[Tower] = []
    nested = config.sub("components")
    for name in components:
        towers += _towers(nested.sub(name), name)
    config.ignore("_class_name")
    return assemble(config, towers, None)
