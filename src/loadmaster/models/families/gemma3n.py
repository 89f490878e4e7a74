"""Gemma 3n: its decoder, a Conformer over audio, MobileNet v5 over images."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import attention, encoder_shape, plain_mlp, rms
from loadmaster.models.config import Config
from loadmaster.models.nested import text_part
from loadmaster.models.spec import Block, Embedding, Linear, ModelSpec, Norm, Parameter, Tower
from loadmaster.records import replace

AUDIO_DEFAULTS = {
    "hidden_size": 1536, "conf_num_attention_heads": 8, "conf_num_hidden_layers": 12, "conf_conv_kernel_size": 5,
    "input_feat_size": 128, "sscp_conv_channel_size": (128, 32), "vocab_size": 128,
}  # fmt: skip
"""What Gemma3nAudioConfig of transformers 5 fills in."""
VISION_DEFAULTS = {"hidden_size": 2048, "vocab_size": 128}
BACKBONES = {"mobilenetv5_300m_enc": 294_126_912}
"""Parameters of timm's image backbones: the published total of gemma-3n-E4B-it less decoder, audio and embedders."""


def _embedder(
    root: str, rows: int, width: int, text_hidden: int
) -> tuple[Embedding, tuple[tuple[str, Norm], ...], Linear]:
    table = Embedding(name=f"{root}.embedding", role="other", rows=rows, width=width)
    norms = tuple((kind, rms(f"{root}.{kind}_embedding_norm", width)) for kind in ("hard", "soft"))
    return table, norms, Linear(name=f"{root}.embedding_projection", inputs=width, outputs=text_hidden)


def _vision(config: Config, text_hidden: int) -> Tower:
    kind = config.text("architecture", default="mobilenetv5_300m_enc")
    if kind not in BACKBONES:
        raise config.fault("architecture", " or ".join(BACKBONES))
    wide = config.count("hidden_size")
    table, norms, project = _embedder("model.embed_vision", config.count("vocab_size"), wide, text_hidden)
    config.ignore("num_classes", "model_args", "do_pooling", "rms_norm_eps")
    config.warnings.append(
        f"the layers inside the image backbone {kind} are not described: only its size is known"
    )
    config.report_unknown()
    return Tower(
        name="vision",
        hidden=wide,
        prefix="model.vision_tower",
        blocks=(),
        layout=(),
        embeddings=(table,),
        norms=norms,
        linears=(project,),
        extra=(Parameter(name="model.vision_tower.timm_model", shape=(BACKBONES[kind],)),),
        modality="vision",
    )


def _conformer(hidden: int, heads: int, kernel: int) -> Block:
    of = encoder_shape(hidden, 1, heads, 4 * hidden, "silu")
    mixer = attention(of, prefix="attention.attn", position="relative", causal=False)
    place = "lconv1d"
    norms = {
        "pre_first": "ffw_layer_start.pre_layer_norm",
        "post_first": "ffw_layer_start.post_layer_norm",
        "pre_mixer": "attention.pre_attn_norm",
        "post_mixer": "attention.post_norm",
        "pre_conv": f"{place}.pre_layer_norm",
        "conv": f"{place}.conv_norm",
        "pre_feedforward": "ffw_layer_end.pre_layer_norm",
        "post_feedforward": "ffw_layer_end.post_layer_norm",
        "out": "norm",
    }
    return Block(
        name="conformer",
        mixer=replace(mixer, output=Linear(name="attention.post", inputs=hidden, outputs=hidden)),
        feedforward=plain_mlp(
            hidden, of.width, "silu", prefix="ffw_layer_end", names=("ffw_layer_1", "ffw_layer_2"), bias=False
        ),
        norms=tuple((where, rms(name, hidden)) for where, name in norms.items()),
        linears=(
            Linear(name="ffw_layer_start.ffw_layer_1", inputs=hidden, outputs=4 * hidden),
            Linear(name="ffw_layer_start.ffw_layer_2", inputs=4 * hidden, outputs=hidden),
            Linear(name="attention.attn.relative_position_embedding.pos_proj", inputs=hidden, outputs=hidden),
            Linear(name=f"{place}.linear_start", inputs=hidden, outputs=2 * hidden),
            Linear(name=f"{place}.linear_end", inputs=hidden, outputs=hidden),
        ),
        extra=(
            Parameter(name="attention.attn.per_dim_scale", shape=(of.head_dim,)),
            Parameter(name=f"{place}.depthwise_conv1d.weight", shape=(hidden, 1, kernel)),
        ),
    )


def _audio(config: Config, text_hidden: int) -> Tower:
    hidden, layers = config.count("hidden_size"), config.layers("conf_num_hidden_layers")
    channels = config.counts("sscp_conv_channel_size", least=1, length=2)
    root = "model.audio_tower"
    conv = f"{root}.subsample_conv_projection"
    extra = []
    for index, (inside, outside) in enumerate(((1, channels[0]), channels)):
        # Both subsampling convolutions are 3 × 3 with a stride of two (configuration_gemma3n.py).
        extra.append(Parameter(name=f"{conv}.conv_{index}.conv.weight", shape=(outside, inside, 3, 3)))
        extra.append(Parameter(name=f"{conv}.conv_{index}.norm.weight", shape=(outside,), role="norm"))
    folded = channels[1] * config.count("input_feat_size") // 4
    table, norms, project = _embedder("model.embed_audio", config.count("vocab_size"), hidden, text_hidden)
    config.ignore("sscp_conv_kernel_size", "sscp_conv_stride_size")
    block = _conformer(
        hidden, config.count("conf_num_attention_heads"), config.count("conf_conv_kernel_size")
    )
    config.report_unknown()
    return Tower(
        name="audio",
        hidden=hidden,
        prefix=f"{root}.conformer",
        blocks=(block,),
        layout=(0,) * layers,
        embeddings=(table,),
        norms=norms,
        linears=(Linear(name=f"{conv}.input_proj_linear", inputs=folded, outputs=hidden), project),
        extra=tuple(extra),
        modality="audio",
    )


def read(config: Config) -> ModelSpec:
    """The whole model (transformers: models/gemma3n/modeling_gemma3n.py)."""
    tower, head = text_part(config, "gemma3n_text")
    vision = _vision(config.sub("vision_config", defaults=VISION_DEFAULTS), tower.hidden)
    audio = _audio(config.sub("audio_config", defaults=AUDIO_DEFAULTS), tower.hidden)
    config.ignore("vision_soft_tokens_per_image", "audio_soft_tokens_per_image")
    config.report_unknown()
    return assemble(config, [vision, audio, tower], head)
