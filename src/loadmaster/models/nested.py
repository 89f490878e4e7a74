"""Models made of others: the nested text and vision configs and the families that read them."""

from __future__ import annotations

from types import ModuleType

from loadmaster.errors import UnknownNameError
from loadmaster.models import families
from loadmaster.models.config import Config
from loadmaster.models.spec import Head, Tower


def nested(config: Config, name: str, part: str, default: str) -> tuple[ModuleType, Config]:
    """The family and the config of a part; a part without ``model_type`` is a ``default``."""
    found = config.fields.get(name)
    kind = str(found.get("model_type") or default) if isinstance(found, dict) else default
    module = families.load(kind, origin=f"{config.path}: {name}")
    if not hasattr(module, part):
        raise UnknownNameError(f"{part} model_type", kind, (), hint="no family can nest it in another model")
    return module, config.sub(name, defaults=getattr(module, "DEFAULTS", None))


def text_part(
    config: Config, default: str, *, root: str = "model.language_model", head: str = "lm_head"
) -> tuple[Tower, Head]:
    """Decoder and head of ``text_config``. A tie that only the outer config states is the one that counts."""
    module, inner = nested(config, "text_config", "text", default)
    if "tie_word_embeddings" in config.fields and "tie_word_embeddings" not in inner.fields:
        inner.fields = {**inner.fields, "tie_word_embeddings": config.flag("tie_word_embeddings")}
    config.ignore("tie_word_embeddings")
    tower, top = module.text(inner, root, head)
    return tower, top


def vision_part(config: Config, default: str, *, root: str = "model.vision_tower") -> Tower:
    """The vision tower of ``vision_config``."""
    module, inner = nested(config, "vision_config", "vision", default)
    tower: Tower = module.vision(inner, root)
    return tower
