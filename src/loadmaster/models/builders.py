"""The parts that model families are put together from: attention, feed-forward, norms, decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.errors import BadFileError
from loadmaster.models.config import HEAD_LIMIT, Config
from loadmaster.models.spec import (
    Attention,
    Block,
    Embedding,
    Experts,
    Head,
    Linear,
    Mlp,
    Norm,
    Tower,
)
from loadmaster.records import Record, replace


class Shape(Record, kw_only=True):
    """The numbers every decoder's config has, whatever they are called there."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    activation: str
    vocab: int | None = None


def shape(config: Config, **given: Any) -> Shape:
    """Read hidden size, layers, heads, feed-forward width and vocabulary under their usual names.

    ``given`` replaces a field whose rule differs. Raises BadFileError for a missing or impossible value.
    """
    hidden = given.get("hidden") or config.count("hidden_size", "n_embd", "d_model")
    heads = config.count("num_attention_heads", "n_head", "n_heads", "num_heads", most=HEAD_LIMIT)
    head_dim = given.get("head_dim") or config.maybe("head_dim", "kv_channels", "d_kv")
    if head_dim is None:
        if hidden % heads:
            raise config.fault("hidden_size", f"a multiple of the {heads} attention heads")
        head_dim = hidden // heads
    kv_heads = given.get("kv_heads") or config.maybe("num_key_value_heads", "num_kv_heads") or heads
    if heads % kv_heads:
        raise config.fault("num_key_value_heads", f"a divisor of the {heads} attention heads")
    return Shape(
        hidden=hidden,
        layers=config.layers("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        width=given.get("width") or config.count("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
        vocab=given.get("vocab") or config.count("vocab_size"),
        activation=given.get("activation")
        or config.text("hidden_act", "hidden_activation", "activation_function", default="silu"),
    )


def vocabulary(config: Config, of: Shape) -> int:
    """Rows of the token table."""
    return of.vocab or config.count("vocab_size")


def encoder_shape(
    hidden: int, layers: int, heads: int, width: int, activation: str, *, head_dim: int | None = None
) -> Shape:
    """The shape of an encoder with as many keys as queries and no vocabulary of its own."""
    if head_dim is None and hidden % heads:
        raise BadFileError("config", f"the width {hidden} is no multiple of the {heads} attention heads")
    return Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim or hidden // heads,
        width=width,
        activation=activation,
    )


def rms(name: str, size: int, *, plus_one: bool = False, weight: bool = True, wide: bool = False) -> Norm:
    """transformers' own RMSNorm class: the statistics are written out in float32, with ``wide`` the product too."""
    return Norm(kind="rms", size=size, name=name, plus_one=plus_one, weight=weight, wide_scale=wide)


def t5_norm(name: str, size: int) -> Norm:
    """T5LayerNorm: an RMS norm whose statistics alone are in float32."""
    return Norm(kind="rms", size=size, name=name, narrow=True)


def layer_norm(name: str, size: int, *, bias: bool = True, weight: bool = True) -> Norm:
    """torch.nn.LayerNorm, one kernel."""
    return Norm(kind="layer", size=size, name=name, bias=bias, weight=weight, native=True)


def dropped(block: Block, hidden: float, weights: float) -> Block:
    """The block with dropout of what its parts add to the residual stream, and of its attention weights."""
    mixer = replace(block.mixer, dropout=weights) if isinstance(block.mixer, Attention) else block.mixer
    cross = replace(block.cross, dropout=weights) if block.cross is not None else None
    return replace(block, dropout=hidden, mixer=mixer, cross=cross)


def attention(
    of: Shape,
    *,
    prefix: str = "self_attn",
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    output: str = "o_proj",
    qkv_bias: bool | tuple[bool, bool, bool] = False,
    out_bias: bool = False,
    **more: Any,
) -> Attention:
    """Attention with separate query, key and value matrices."""
    query, key = of.heads * of.head_dim, of.kv_heads * of.head_dim
    biases = qkv_bias if isinstance(qkv_bias, tuple) else (qkv_bias,) * 3
    return Attention(
        heads=of.heads,
        kv_heads=of.kv_heads,
        head_dim=of.head_dim,
        value_dim=of.head_dim,
        projections=tuple(
            Linear(name=f"{prefix}.{name}", inputs=of.hidden, outputs=size, bias=bias)
            for name, size, bias in zip(names, (query, key, key), biases, strict=True)
        ),
        output=Linear(name=f"{prefix}.{output}", inputs=query, outputs=of.hidden, bias=out_bias),
        **more,
    )


def fused_attention(
    of: Shape,
    *,
    prefix: str = "self_attn",
    name: str = "qkv_proj",
    output: str = "o_proj",
    qkv_bias: bool = False,
    out_bias: bool = False,
    **more: Any,
) -> Attention:
    """Attention whose query, key and value come from one matrix."""
    query, key = of.heads * of.head_dim, of.kv_heads * of.head_dim
    return Attention(
        heads=of.heads,
        kv_heads=of.kv_heads,
        head_dim=of.head_dim,
        value_dim=of.head_dim,
        projections=(
            Linear(name=f"{prefix}.{name}", inputs=of.hidden, outputs=query + 2 * key, bias=qkv_bias),
        ),
        output=Linear(name=f"{prefix}.{output}", inputs=query, outputs=of.hidden, bias=out_bias),
        **more,
    )


def head_norms(
    of: Shape, *, prefix: str = "self_attn", whole: bool = False, plus_one: bool = False, wide: bool = False
) -> dict[str, Any]:
    """RMS norms on queries and keys, per head, or over all heads at once (``whole``, OLMo 2)."""
    query = of.heads * of.head_dim if whole else of.head_dim
    key = of.kv_heads * of.head_dim if whole else of.head_dim
    return {
        "query_norm": rms(f"{prefix}.q_norm", query, plus_one=plus_one, wide=wide),
        "key_norm": rms(f"{prefix}.k_norm", key, plus_one=plus_one, wide=wide),
    }


def gated_mlp(
    hidden: int,
    width: int,
    activation: str,
    *,
    prefix: str = "mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: bool = False,
) -> Mlp:
    """SwiGLU and its kin: activation(gate) × up, then down."""
    gate, up, down = (f"{prefix}.{name}" for name in names)
    return Mlp(
        width=width,
        gated=True,
        activation=activation,
        projections=(
            Linear(name=gate, inputs=hidden, outputs=width, bias=bias),
            Linear(name=up, inputs=hidden, outputs=width, bias=bias),
        ),
        output=Linear(name=down, inputs=width, outputs=hidden, bias=bias),
    )


def fused_gated_mlp(
    hidden: int,
    width: int,
    activation: str,
    *,
    prefix: str = "mlp",
    names: tuple[str, str] = ("gate_up_proj", "down_proj"),
    bias: bool = False,
) -> Mlp:
    """A gated feed-forward whose gate and up are one matrix of twice the width."""
    return Mlp(
        width=width,
        gated=True,
        activation=activation,
        projections=(Linear(name=f"{prefix}.{names[0]}", inputs=hidden, outputs=2 * width, bias=bias),),
        output=Linear(name=f"{prefix}.{names[1]}", inputs=width, outputs=hidden, bias=bias),
    )


def plain_mlp(
    hidden: int,
    width: int,
    activation: str,
    *,
    prefix: str = "mlp",
    names: tuple[str, str] = ("fc1", "fc2"),
    bias: bool = True,
) -> Mlp:
    """Up, activation, down."""
    up, down = (f"{prefix}.{name}" if prefix else name for name in names)
    return Mlp(
        width=width,
        gated=False,
        activation=activation,
        projections=(Linear(name=up, inputs=hidden, outputs=width, bias=bias),),
        output=Linear(name=down, inputs=width, outputs=hidden, bias=bias),
    )


def experts(
    hidden: int,
    width: int,
    activation: str,
    *,
    count: int,
    per_token: int,
    prefix: str = "mlp",
    router: str = "gate",
    **more: Any,
) -> Experts:
    """A mixture of gated experts as transformers 5 holds it: two 3-D tensors, gate and up fused in one."""
    bias = more.pop("bias", False)
    if per_token > count:
        raise BadFileError(
            "config", f"num_experts_per_tok is {per_token}, but there are only {count} experts"
        )
    return Experts(
        count=count,
        per_token=per_token,
        expert=fused_gated_mlp(hidden, width, activation, prefix=f"{prefix}.experts", bias=bias),
        router=Linear(
            name=f"{prefix}.{router}",
            inputs=hidden,
            outputs=count,
            bias=more.pop("router_bias", False),
            derived=more.pop("router_derived", False),
        ),
        stacked=True,
        **more,
    )


def pre_norms(hidden: int, *, plus_one: bool = False) -> tuple[tuple[str, Norm], ...]:
    """Llama's two norms: before attention and before the feed-forward."""
    return (
        ("pre_mixer", rms("input_layernorm", hidden, plus_one=plus_one)),
        ("pre_feedforward", rms("post_attention_layernorm", hidden, plus_one=plus_one)),
    )


def tied(config: Config, *, default: bool) -> bool:
    """Whether the head shares the token table; ``default`` is the config class's in transformers 5."""
    return config.flag("tie_word_embeddings", default=default)


def stack(
    config: Config,
    of: Shape,
    kinds: Mapping[str, Block] | Block,
    order: Sequence[str] | None = None,
    *,
    root: str = "model",
    prefix: str = "layers",
    embedding: str = "embed_tokens",
    final: Norm | None = None,
    **more: Any,
) -> Tower:
    """The decoder's tower: token table, layers in ``order`` (kinds that nothing uses are dropped), final norm."""
    if isinstance(kinds, Block):
        table: Mapping[str, Block] = {kinds.name: kinds}
        order = [kinds.name] * of.layers
    else:
        table = kinds
    order = list(order or ())
    needed = set(order)
    used = [name for name in table if name in needed]
    place = {name: index for index, name in enumerate(used)}
    config.report_unknown()
    tables = more.pop("embeddings", ())
    token = Embedding(
        name=join(root, embedding),
        role="token",
        rows=vocabulary(config, of),
        width=more.pop("token_width", of.hidden),
    )
    return Tower(
        name=more.pop("name", "decoder"),
        hidden=of.hidden,
        prefix=join(root, prefix),
        blocks=tuple(table[name] for name in used),
        layout=tuple(place[name] for name in order),
        embeddings=(token, *tables),
        norms=(*more.pop("outer_norms", ()), ("final", final or rms(join(root, "norm"), of.hidden))),
        **more,
    )


def decoder(
    config: Config,
    of: Shape,
    kinds: Mapping[str, Block] | Block,
    order: Sequence[str] | None = None,
    *,
    root: str = "model",
    head: str = "lm_head",
    tied_default: bool = False,
    head_bias: bool = False,
    softcap: bool = False,
    **more: Any,
) -> tuple[Tower, Head]:
    """Tower and head of a decoder; ``tied_default`` is what the config class says when the config is silent."""
    config.ignore("max_position_embeddings", "n_positions", "head_dim")
    top = Head(
        name=head,
        vocab=vocabulary(config, of),
        inputs=of.hidden,
        tied=tied(config, default=tied_default),
        bias=head_bias,
        softcap=softcap,
    )
    return stack(config, of, kinds, order, root=root, **more), top


def join(root: str, name: str) -> str:
    """A module's full name; nothing stands before it where ``root`` is empty."""
    return f"{root}.{name}" if root else name
