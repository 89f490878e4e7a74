"""Llama 4's decoder: every fourth layer sees all keys without rotary positions, the others a chunk of them."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, experts, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower
from loadmaster.models.windows import CHUNKED, FULL, layer_types

DEFAULTS = {
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
}  # fmt: skip
"""What Llama4TextConfig of transformers 5 fills in."""


def _with_experts(config: Config, layers: int) -> set[int]:
    step = config.count("interleave_moe_layer_step")
    if config.has("moe_layers"):
        return set(config.counts("moe_layers"))
    return set(range(step - 1, layers, step))


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/llama4/modeling_llama4.py)."""
    of = shape(config)
    every = config.count("no_rope_layer_interval", default=4)
    default = tuple(int((index + 1) % every != 0) for index in range(of.layers))
    # An empty list means the same as a missing one.
    given = config.counts("no_rope_layers", default=()) or default
    if len(given) != of.layers:
        raise config.fault("no_rope_layers", f"a list of {of.layers} numbers, one a layer")
    chunk = config.maybe("attention_chunk_size")
    kinds = layer_types(config, of.layers, lambda index: CHUNKED if given[index] and chunk else FULL)
    bias = config.flag("attention_bias", default=False)
    unit = Norm(kind="rms", size=of.head_dim, weight=False, name="self_attn.qk_norm")
    normed = config.flag("use_qk_norm", default=True)
    moe = experts(
        of.hidden,
        of.width,
        of.activation,
        count=config.count("num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        prefix="feed_forward",
        router="router",
        router_derived=True,
        all_tokens=True,
        inputs_first=True,
        shared=gated_mlp(of.hidden, of.width, of.activation, prefix="feed_forward.shared_expert"),
    )
    dense = gated_mlp(of.hidden, config.count("intermediate_size_mlp"), of.activation, prefix="feed_forward")
    sparse = _with_experts(config, of.layers)
    table: dict[str, Block] = {}
    order = []
    for index in range(of.layers):
        rope = bool(given[index])
        name = f"{kinds[index]}{'' if rope else '_no_rope'}{'' if index in sparse else '_dense'}"
        order.append(name)
        if name not in table:
            norm = unit if normed and rope else None
            table[name] = Block(
                name=name,
                mixer=attention(
                    of,
                    qkv_bias=bias,
                    out_bias=bias,
                    window=chunk if kinds[index] == CHUNKED else None,
                    position="rope" if rope else "none",
                    query_norm=norm,
                    key_norm=norm,
                ),
                feedforward=moe if index in sparse else dense,
                norms=pre_norms(of.hidden),
            )
    return decoder(config, of, table, order, root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The decoder alone."""
    return one_text(config, text(config))
