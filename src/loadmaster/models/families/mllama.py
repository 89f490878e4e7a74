"""Llama 3.2 Vision: Llama's decoder with cross-attention layers to a two-stage tower over image tiles."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import (
    Shape,
    attention,
    decoder,
    encoder_shape,
    gated_mlp,
    head_norms,
    layer_norm,
    plain_mlp,
    pre_norms,
    shape,
)
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, Head, Linear, ModelSpec, Parameter, Tower
from loadmaster.models.vision import patch_weight, patches
from loadmaster.records import replace

TEXT_DEFAULTS = {
    "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
}  # fmt: skip
VISION_DEFAULTS = {
    "hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16,
    "intermediate_size": 5120, "image_size": 448, "patch_size": 14, "max_num_tiles": 4,
    "intermediate_layers_indices": (3, 7, 15, 23, 30),
}  # fmt: skip
"""What MllamaTextConfig and MllamaVisionConfig of transformers 5 fill in."""
EXTRA_ROWS = 8
"""The token table has eight rows more than the vocabulary, for image tokens (modeling_mllama.py)."""
ASPECT_RATIOS = 8
"""Ways to lay out up to four tiles, when the config doesn't list them (configuration_mllama.py)."""


def _decoder(config: Config) -> tuple[Tower, Head]:
    of = shape(config)
    crossing = set(config.counts("cross_attention_layers"))
    gates = tuple(Parameter(name=f"cross_attn_{part}_gate", shape=(1,)) for part in ("attn", "mlp"))
    cross = attention(
        of,
        prefix="cross_attn",
        position="none",
        causal=False,
        cross=True,
        **head_norms(of, prefix="cross_attn"),
    )
    feedforward = gated_mlp(of.hidden, of.width, of.activation)
    norms = pre_norms(of.hidden)
    kinds = {
        "layer": Block(name="layer", mixer=attention(of), feedforward=feedforward, norms=norms),
        "cross": Block(
            name="cross",
            cross=cross,
            feedforward=feedforward,
            norms=(("pre_cross", norms[0][1]), norms[1]),
            extra=gates,
        ),
    }
    order = ["cross" if index in crossing else "layer" for index in range(of.layers)]
    tower, head = decoder(config, of, kinds, order, root="model.language_model")
    table = replace(tower.embeddings[0], rows=tower.embeddings[0].rows + EXTRA_ROWS)
    return replace(tower, embeddings=(table,)), head


def _block(of: Shape, *, gated: bool) -> Block:
    gates = tuple(Parameter(name=name, shape=(1,)) for name in ("gate_attn", "gate_ffn"))
    return Block(
        mixer=attention(of, position="learned", causal=False),
        feedforward=plain_mlp(of.hidden, of.width, of.activation),
        norms=(
            ("pre_mixer", layer_norm("input_layernorm", of.hidden)),
            ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)),
        ),
        extra=gates if gated else (),
    )


def _outside(
    config: Config, root: str, wide: int, per_tile: int
) -> tuple[tuple[Embedding, ...], tuple[Parameter, ...]]:
    tiles = config.count("max_num_tiles")
    ratios = config.value("supported_aspect_ratios", default=None)
    rows = 1 + (len(ratios) if isinstance(ratios, list) and ratios else ASPECT_RATIOS)
    place = f"{root}.gated_positional_embedding"
    tables = [
        Embedding(name=f"{place}.tile_embedding", role="position", rows=rows, width=tiles * per_tile * wide),
        *(
            Embedding(
                name=f"{root}.{end}_tile_positional_embedding.embedding",
                role="position",
                rows=rows,
                width=tiles * wide,
            )
            for end in ("pre", "post")
        ),
    ]
    extra = (
        Parameter(name=f"{root}.class_embedding", shape=(wide,)),
        *patch_weight(config, f"{root}.patch_embedding", wide, bias=False),
        Parameter(name=f"{place}.gate", shape=(1,)),
        Parameter(name=f"{place}.embedding", shape=(per_tile, wide), role="position"),
        Parameter(name=f"{root}.pre_tile_positional_embedding.gate", shape=(1,)),
        Parameter(name=f"{root}.post_tile_positional_embedding.gate", shape=(1,)),
    )
    return tuple(tables), extra


def _vision(config: Config, text_hidden: int) -> tuple[Tower, Tower]:
    of = encoder_shape(
        config.count("hidden_size"),
        config.layers("num_hidden_layers"),
        config.count("attention_heads", "num_attention_heads"),
        config.count("intermediate_size"),
        config.text("hidden_act", default="gelu"),
    )
    wide = of.hidden
    per_tile = patches(config) + 1
    root = "model.vision_model"
    tables, extra = _outside(config, root, wide, per_tile)
    tiles = config.count("max_num_tiles")
    # Patches of a tile are padded to a multiple of eight (modeling_mllama.py, MllamaVisionModel.forward).
    tokens = tiles * -(-per_tile // 8) * 8
    kept = len(config.counts("intermediate_layers_indices"))
    config.ignore("vision_output_dim")
    deep = config.layers("num_global_layers")
    bridge = Linear(
        name="model.multi_modal_projector", inputs=wide * (1 + kept), outputs=text_hidden, bias=True
    )
    config.report_unknown()
    local = Tower(
        name="vision",
        hidden=wide,
        prefix=f"{root}.transformer.layers",
        blocks=(_block(of, gated=False),),
        layout=(0,) * of.layers,
        embeddings=tables,
        norms=(
            ("embedding", layer_norm(f"{root}.layernorm_pre", wide)),
            ("final", layer_norm(f"{root}.layernorm_post", wide)),
        ),
        extra=extra,
        tokens=tokens,
        modality="vision",
    )
    whole = Tower(
        name="vision_global",
        hidden=wide,
        prefix=f"{root}.global_transformer.layers",
        blocks=(_block(of, gated=True),),
        layout=(0,) * deep,
        linears=(bridge,),
        tokens=tokens,
        modality="vision",
    )
    return local, whole


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/mllama/modeling_mllama.py)."""
    tower, head = _decoder(config.sub("text_config", defaults=TEXT_DEFAULTS))
    local, whole = _vision(config.sub("vision_config", defaults=VISION_DEFAULTS), tower.hidden)
    config.ignore("tie_word_embeddings")
    config.report_unknown()
    return assemble(config, [local, whole, tower], head)
