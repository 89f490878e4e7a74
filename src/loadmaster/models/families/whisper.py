"""Whisper: two convolutions and an encoder over audio frames, a decoder with cross-attention."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, attention, encoder_shape, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Embedding, Head, ModelSpec, Norm, Parameter, Tower


def _attention(of: Shape, prefix: str, *, causal: bool, cross: bool = False) -> Attention:
    return attention(
        of,
        prefix=prefix,
        output="out_proj",
        # The key projection alone has no bias.
        qkv_bias=(True, False, True),
        out_bias=True,
        position="learned",
        wide_softmax=False,
        causal=causal,
        cross=cross,
        head_major=True,
    )


def _block(of: Shape, *, cross: bool) -> Block:
    norms: tuple[tuple[str, Norm], ...] = (("pre_mixer", layer_norm("self_attn_layer_norm", of.hidden)),)
    if cross:
        norms = (*norms, ("pre_cross", layer_norm("encoder_attn_layer_norm", of.hidden)))
    return Block(
        mixer=_attention(of, "self_attn", causal=cross),
        cross=_attention(of, "encoder_attn", causal=False, cross=True) if cross else None,
        feedforward=plain_mlp(of.hidden, of.width, of.activation, prefix=""),
        norms=(*norms, ("pre_feedforward", layer_norm("final_layer_norm", of.hidden))),
    )


def _shape(config: Config, side: str) -> Shape:
    return encoder_shape(
        config.count("d_model"),
        config.layers(f"{side}_layers"),
        config.count(f"{side}_attention_heads"),
        config.count(f"{side}_ffn_dim"),
        config.text("activation_function", default="gelu"),
    )


def _encoder(config: Config, of: Shape) -> Tower:
    frames = config.count("max_source_positions", default=1500)
    root = "model.encoder"
    mels = config.count("num_mel_bins", default=80)
    extra = []
    # Both convolutions have a kernel of three (modeling_whisper.py, WhisperEncoder).
    for number, channels in ((1, mels), (2, of.hidden)):
        extra.append(Parameter(name=f"{root}.conv{number}.weight", shape=(of.hidden, channels, 3)))
        extra.append(Parameter(name=f"{root}.conv{number}.bias", shape=(of.hidden,)))
    return Tower(
        name="encoder",
        hidden=of.hidden,
        prefix=f"{root}.layers",
        blocks=(_block(of, cross=False),),
        layout=(0,) * of.layers,
        embeddings=(
            Embedding(name=f"{root}.embed_positions", role="position", rows=frames, width=of.hidden),
        ),
        norms=(("final", layer_norm(f"{root}.layer_norm", of.hidden)),),
        extra=tuple(extra),
        tokens=frames,
        # The first convolution has a stride of one over twice the frames, the second of two; gelu follows each.
        input_values=2 * frames * mels,
        stem=5 * frames * of.hidden,
        modality="audio",
    )


def read(config: Config) -> ModelSpec:
    """The whole model; the head is always tied (transformers: models/whisper/modeling_whisper.py)."""
    vocab, positions = config.count("vocab_size"), config.count("max_target_positions", default=448)
    root = "model.decoder"
    of = _shape(config, "decoder")
    front = _encoder(config, _shape(config, "encoder"))
    back = Tower(
        name="decoder",
        hidden=of.hidden,
        prefix=f"{root}.layers",
        blocks=(_block(of, cross=True),),
        layout=(0,) * of.layers,
        embeddings=(
            Embedding(name=f"{root}.embed_tokens", role="token", rows=vocab, width=of.hidden),
            Embedding(name=f"{root}.embed_positions", role="position", rows=positions, width=of.hidden),
        ),
        norms=(("final", layer_norm(f"{root}.layer_norm", of.hidden)),),
    )
    config.ignore(
        "num_hidden_layers", "classifier_proj_size", "use_weighted_layer_sum", "tie_word_embeddings"
    )
    config.report_unknown()
    return assemble(
        config,
        [front, back],
        Head(name="proj_out", vocab=vocab, inputs=of.hidden, tied=True, upcast=False, last_only=False),
    )
