"""GLM-4-0414: GLM's layer with two more norms, behind attention and feed-forward."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.config import Config
from loadmaster.models.families import glm
from loadmaster.models.spec import Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/glm4/modeling_glm4.py)."""
    return glm.text(config, root, head, sandwich=True)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
