"""StarCoder 1 and SantaCoder: GPT-2's layer with one key-value head for all queries."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Embedding, Head, ModelSpec, Tower


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gpt_bigcode/modeling_gpt_bigcode.py)."""
    hidden = config.count("n_embd", "hidden_size")
    width = config.maybe("n_inner", "intermediate_size") or 4 * hidden
    one = config.flag("multi_query", default=True)
    activation = config.text("activation_function", default="gelu_pytorch_tanh")
    of = shape(config, hidden=hidden, width=width, activation=activation, kv_heads=1 if one else None)
    positions = config.count("n_positions", default=1024)
    config.ignore(
        "add_cross_attention",
        "inference_runner",
        "max_batch_size",
        "max_sequence_length",
        "pre_allocate_kv_cache",
    )
    config.ignore("validate_runner_input", "num_key_value_heads")
    block = Block(
        mixer=fused_attention(
            of,
            prefix="attn",
            name="c_attn",
            output="c_proj",
            qkv_bias=True,
            out_bias=True,
            position="learned",
        ),
        feedforward=plain_mlp(hidden, width, activation, names=("c_fc", "c_proj")),
        norms=(("pre_mixer", layer_norm("ln_1", hidden)), ("pre_feedforward", layer_norm("ln_2", hidden))),
    )
    table = Embedding(name=f"{root}.wpe", role="position", rows=positions, width=hidden)
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        tied_default=True,
        prefix="h",
        embedding="wte",
        final=layer_norm(f"{root}.ln_f", hidden),
        embeddings=(table,),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
