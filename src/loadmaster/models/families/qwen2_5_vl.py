"""Qwen 2.5 VL: a vision tower with windowed attention, and Qwen 2's decoder."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import encoder_shape, fused_attention, gated_mlp, rms
from loadmaster.models.config import Config
from loadmaster.models.families import qwen2
from loadmaster.models.nested import nested
from loadmaster.models.spec import Block, Linear, ModelSpec, Parameter, Tower

VISION_DEFAULTS = {
    "depth": 32, "hidden_size": 3584, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "out_hidden_size": 3584,
    "fullatt_block_indexes": (7, 15, 23, 31),
}  # fmt: skip
"""What Qwen2_5_VLVisionConfig of transformers 5 fills in."""


def _vision(config: Config) -> Tower:
    of = encoder_shape(
        config.count("hidden_size"),
        config.layers("depth", "num_hidden_layers"),
        config.count("num_heads", "num_attention_heads"),
        config.count("intermediate_size"),
        config.text("hidden_act", default="silu"),
    )
    side = config.count("patch_size")
    merge, time = config.count("spatial_merge_size"), config.count("temporal_patch_size")
    seen = (config.count("window_size") // side) ** 2
    whole = set(config.counts("fullatt_block_indexes"))
    root = "model.visual"
    blocks = tuple(
        Block(
            name=name,
            mixer=fused_attention(
                of,
                prefix="attn",
                name="qkv",
                output="proj",
                qkv_bias=True,
                out_bias=True,
                window=window,
                causal=False,
            ),
            feedforward=gated_mlp(of.hidden, of.width, of.activation, bias=True),
            norms=(("pre_mixer", rms("norm1", of.hidden)), ("pre_feedforward", rms("norm2", of.hidden))),
        )
        for name, window in (("windowed", seen), ("full", None))
    )
    channels = config.count("in_channels", "in_chans", default=3)
    config.ignore("in_chans", "tokens_per_second", "spatial_patch_size")
    folded = of.hidden * merge**2
    outer = config.count("out_hidden_size")
    config.report_unknown()
    return Tower(
        name="vision",
        hidden=of.hidden,
        prefix=f"{root}.blocks",
        blocks=blocks,
        layout=tuple(int(index in whole) for index in range(of.layers)),
        norms=(("merger", rms(f"{root}.merger.ln_q", of.hidden)),),
        linears=(
            Linear(name=f"{root}.merger.mlp.0", inputs=folded, outputs=folded, bias=True),
            Linear(name=f"{root}.merger.mlp.2", inputs=folded, outputs=outer, bias=True),
        ),
        extra=(
            Parameter(name=f"{root}.patch_embed.proj.weight", shape=(of.hidden, channels, time, side, side)),
        ),
        modality="vision",
    )


def read(config: Config) -> ModelSpec:
    """The whole model; on the hub the decoder's fields are beside ``vision_config``, not nested."""
    vision = _vision(config.sub("vision_config", defaults=VISION_DEFAULTS))
    inner = config
    if config.has("text_config"):
        _, inner = nested(config, "text_config", "text", "qwen2_5_vl_text")
        if "tie_word_embeddings" in config.fields and "tie_word_embeddings" not in inner.fields:
            inner.fields = {**inner.fields, "tie_word_embeddings": config.flag("tie_word_embeddings")}
        config.ignore("tie_word_embeddings")
        config.report_unknown()
    tower, head = qwen2.text(inner, "model.language_model")
    return assemble(config, [vision, tower], head)
