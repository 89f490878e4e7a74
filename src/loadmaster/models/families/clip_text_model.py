"""CLIP's text tower, as image pipelines use it."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import encoder_shape, join, layer_norm
from loadmaster.models.config import Config
from loadmaster.models.spec import Embedding, ModelSpec, Tower
from loadmaster.models.vision import clip_block

DEFAULTS = {
    "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77,
}  # fmt: skip
"""What CLIPTextConfig of transformers 5 fills in."""


def encoder(config: Config, root: str = "text_model", name: str = "text") -> Tower:
    """The tower (transformers: models/clip/modeling_clip.py)."""
    of = encoder_shape(
        config.count("hidden_size"),
        config.layers("num_hidden_layers"),
        config.count("num_attention_heads"),
        config.count("intermediate_size"),
        config.text("hidden_act", default="quick_gelu"),
    )
    positions = config.count("max_position_embeddings")
    place = join(root, "embeddings")
    tokens = Embedding(
        name=f"{place}.token_embedding", role="token", rows=config.count("vocab_size"), width=of.hidden
    )
    table = Embedding(name=f"{place}.position_embedding", role="position", rows=positions, width=of.hidden)
    config.ignore("projection_dim")
    config.report_unknown()
    return Tower(
        name=name,
        hidden=of.hidden,
        prefix=join(root, "encoder.layers"),
        blocks=(clip_block(of, causal=True),),
        layout=(0,) * of.layers,
        embeddings=(tokens, table),
        norms=(("final", layer_norm(join(root, "final_layer_norm"), of.hidden)),),
        tokens=positions,
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [encoder(config, "")], None)
