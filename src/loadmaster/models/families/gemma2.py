"""Gemma 2: four norms a layer, every other layer windowed, soft caps on scores and logits."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window


def sandwich(hidden: int) -> tuple[tuple[str, Norm], ...]:
    """Norms before and after attention and feed-forward, with weights stored as an offset from one."""
    names = {
        "pre_mixer": "input_layernorm",
        "post_mixer": "post_attention_layernorm",
        "pre_feedforward": "pre_feedforward_layernorm",
        "post_feedforward": "post_feedforward_layernorm",
    }
    return tuple((place, rms(name, hidden, plus_one=True)) for place, name in names.items())


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gemma2/modeling_gemma2.py)."""
    activation = config.text("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    of = shape(config, head_dim=config.count("head_dim", default=256), activation=activation)
    bias = config.flag("attention_bias", default=False)
    softcap = "attn_logit_softcapping" not in config.fields or config.has("attn_logit_softcapping")
    final = "final_logit_softcapping" not in config.fields or config.has("final_logit_softcapping")
    config.ignore("attn_logit_softcapping", "final_logit_softcapping", "hidden_act", "hidden_activation")
    size = window(config, 4096)
    order = layer_types(config, of.layers, lambda index: FULL if index % 2 else SLIDING)
    kinds = {
        name: Block(
            name=name,
            mixer=attention(of, qkv_bias=bias, out_bias=bias, window=seen, softcap=softcap),
            feedforward=gated_mlp(of.hidden, of.width, of.activation),
            norms=sandwich(of.hidden),
        )
        for name, seen in ((SLIDING, size), (FULL, None))
    }
    norm = rms(f"{root}.norm", of.hidden, plus_one=True)
    return decoder(
        config, of, kinds, order, root=root, head=head, tied_default=True, softcap=final, final=norm
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
