"""Falcon 7B, 40B and 180B: attention and feed-forward side by side; one key-value head (7B) or groups (40B)."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, layer_norm, plain_mlp, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Head, Mlp, ModelSpec, Norm, Tower
from loadmaster.records import replace


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/falcon/modeling_falcon.py)."""
    hidden = config.count("hidden_size", "n_embed")
    heads = config.count("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", default=False)
    one_key = config.flag("multi_query", default=True) and not new
    groups = 1 if one_key else config.maybe("num_kv_heads", "num_key_value_heads", "n_head_kv") or heads
    config.ignore("num_kv_heads", "num_key_value_heads", "n_head_kv")
    width = config.maybe("ffn_hidden_size", "intermediate_size") or 4 * hidden
    activation = config.text("activation", "hidden_act", default="gelu")
    of = shape(config, hidden=hidden, kv_heads=groups, width=width, activation=activation)
    bias = config.flag("bias", default=False)
    parallel = config.flag("parallel_attn", default=True)
    block = Block(
        mixer=fused_attention(
            of,
            prefix="self_attention",
            name="query_key_value",
            output="dense",
            qkv_bias=bias,
            out_bias=bias,
            wide_softmax=False,
            position="alibi" if config.flag("alibi", default=False) else "rope",
            cached_heads=heads if new else None,
            grouping="repeat" if new else "broadcast",
        ),
        feedforward=plain_mlp(hidden, width, activation, names=("dense_h_to_4h", "dense_4h_to_h"), bias=bias),
        norms=_norms(config, hidden, new=new, parallel=parallel),
        parallel=parallel or new,
    )
    block = _derived(block)
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        tied_default=True,
        prefix="h",
        embedding="word_embeddings",
        final=layer_norm(f"{root}.ln_f", hidden),
    )


def _derived(block: Block) -> Block:
    """FalconLinear in place of torch.nn.Linear."""
    mixer, mlp = block.mixer, block.feedforward
    assert isinstance(mixer, Attention)
    assert isinstance(mlp, Mlp)
    (joint,), (up,) = mixer.projections, mlp.projections
    return replace(
        block,
        mixer=replace(
            mixer, projections=(replace(joint, derived=True),), output=replace(mixer.output, derived=True)
        ),
        feedforward=replace(
            mlp, projections=(replace(up, derived=True),), output=replace(mlp.output, derived=True)
        ),
    )


def _norms(config: Config, hidden: int, *, new: bool, parallel: bool) -> tuple[tuple[str, Norm], ...]:
    count = config.maybe("num_ln_in_parallel_attn")
    if new and (count or 2) == 2:
        return ("pre_mixer", layer_norm("ln_attn", hidden)), ("pre_feedforward", layer_norm("ln_mlp", hidden))
    first = ("pre_mixer", layer_norm("input_layernorm", hidden))
    if parallel or new:
        return (first,)
    return first, ("pre_feedforward", layer_norm("post_attention_layernorm", hidden))


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
