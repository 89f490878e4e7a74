"""GLM-4.5: grouped attention with biases, DeepSeek-V3's experts, the first layers dense."""

from __future__ import annotations

from typing import Any

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.deepseek_v2 import dense_first, routed
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/glm4_moe/modeling_glm4_moe.py)."""
    of = shape(config)
    norms: dict[str, Any] = head_norms(of) if config.flag("use_qk_norm", default=False) else {}
    mixer = attention(
        of,
        qkv_bias=config.flag("attention_bias", default=False),
        rotary_dim=rotary_dim(config, of.head_dim, 0.5),
        **norms,
    )
    dense = gated_mlp(of.hidden, of.width, of.activation)
    kinds = {
        "dense": Block(name="dense", mixer=mixer, feedforward=dense, norms=pre_norms(of.hidden)),
        "experts": Block(
            name="experts", mixer=mixer, feedforward=routed(config, of, shared=1), norms=pre_norms(of.hidden)
        ),
    }
    return decoder(config, of, kinds, dense_first(config, of.layers, 1), root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model; a multi-token-prediction layer is not built, as in transformers."""
    return one_text(config, text(config))
