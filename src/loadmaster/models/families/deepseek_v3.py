"""DeepSeek-V3 and R1: as V2 but for its router, whose correction bias is a buffer."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.config import Config
from loadmaster.models.families import deepseek_v2
from loadmaster.models.spec import Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/deepseek_v3/modeling_deepseek_v3.py)."""
    return deepseek_v2.text(config, root, head, dense=3, shared=1)


def read(config: Config) -> ModelSpec:
    """The whole model; a multi-token-prediction layer is not built, as in transformers."""
    return one_text(config, text(config))
