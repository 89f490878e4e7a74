"""Qwen 1 (the first, with its own code): query-key-value fused with a bias, half of ``intermediate_size`` a matrix."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, gated_mlp, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Tower


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_qwen.py: w1 and w2 are each half as wide as the config
    says; ``qwen_intermediate_size`` marks a config where the halving is done)."""
    width = config.count("intermediate_size")
    if not config.has("qwen_intermediate_size"):
        width //= 2
    of = shape(config, width=width, activation="silu")
    config.ignore("kv_channels", "attention_bias", "attention_out_bias", "no_bias", "num_key_value_heads")
    config.ignore("use_cache_quantization", "use_cache_kernel")
    block = Block(
        mixer=fused_attention(of, prefix="attn", name="c_attn", output="c_proj", qkv_bias=True),
        feedforward=gated_mlp(of.hidden, width, of.activation, names=("w2", "w1", "c_proj")),
        norms=(("pre_mixer", rms("ln_1", of.hidden)), ("pre_feedforward", rms("ln_2", of.hidden))),
    )
    final = rms(f"{root}.ln_f", of.hidden)
    return decoder(config, of, block, root=root, head=head, prefix="h", embedding="wte", final=final)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
