"""Gemma 3 text: Gemma 2's four norms, norms on heads, five windowed layers to each full one."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, head_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.families.gemma2 import sandwich
from loadmaster.models.spec import Block, Head, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, layer_types, window

DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131072,
}  # fmt: skip
"""What Gemma3TextConfig of transformers 5 fills in: Gemma 3's own configs leave many fields out."""


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gemma3/modeling_gemma3.py)."""
    activation = config.text("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    of = shape(config, head_dim=config.count("head_dim", default=256), activation=activation)
    bias = config.flag("attention_bias", default=False)
    softcap = config.has("attn_logit_softcapping")
    final = config.has("final_logit_softcapping")
    config.ignore("use_bidirectional_attention")
    size = window(config, 4096)
    every = config.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    order = layer_types(config, of.layers, lambda index: SLIDING if (index + 1) % every else FULL)
    kinds = {
        name: Block(
            name=name,
            mixer=attention(
                of,
                qkv_bias=bias,
                out_bias=bias,
                window=seen,
                softcap=softcap,
                **head_norms(of, plus_one=True),
            ),
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
