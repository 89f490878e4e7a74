"""Recognises a layer's parts by the names that most codes give them: attention, feed-forward, norms, experts."""

from __future__ import annotations

import re
from collections import defaultdict

from loadmaster.models.spec import Attention, Block, Convolution, Linear, Mlp, Norm, Parameter

Piece = tuple[str, tuple[int, ...]]

_EXPERT = re.compile(r"(?<=experts\.)\d+(?=\.)")
_NORM = re.compile(r"norm|(^|[._])ln(_|\d|f|$)|rms", re.IGNORECASE)
_ROLES = (
    ("experts", re.compile(r"expert|_exps")),
    ("router", re.compile(r"router|gate_inp|mlp\.gate(\.|$)")),
    ("norm", _NORM),
    ("attention", re.compile(r"att|query|key|value|(^|[._])(wq|wk|wv|wo|q|k|v|o|qkv)(_proj|[._]|$)|sinks")),
    ("mixer", re.compile(r"mamba|ssm|A_log|dt_|conv1d|mixer")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|fc\d|dense|intermediate|w[123]($|\.)|gate|up_proj|down_proj")),
)
_QUERY = ("q_proj", "query", "q", "to_q", "attn_q", "query_proj", "wq", "q_lin")
_KEY = ("k_proj", "key", "k", "to_k", "attn_k", "key_proj", "wk", "k_lin")
_VALUE = ("v_proj", "value", "v", "to_v", "attn_v", "value_proj", "wv", "v_lin")
_OUTPUT = ("o_proj", "out_proj", "o", "attn_output", "wo", "out_lin", "0", "dense", "proj", "c_proj")
_FUSED = ("qkv_proj", "qkv", "query_key_value", "c_attn", "Wqkv", "wqkv", "W_pack", "attn_qkv", "in_proj")
_GATED = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("ffn_gate", "ffn_up", "ffn_down"),
    ("wi_0", "wi_1", "wo"),
)
_PLAIN = (
    ("fc1", "fc2"), ("c_fc", "c_proj"), ("fc_in", "fc_out"), ("dense_h_to_4h", "dense_4h_to_h"),
    ("up_proj", "down_proj"), ("ffn_up", "ffn_down"), ("wi", "wo"), ("lin1", "lin2"), ("linear1", "linear2"),
)  # fmt: skip


def is_norm(name: str) -> bool:
    """Whether a name is one that norms have."""
    return bool(_NORM.search(name))


def role_of(name: str) -> str:
    """What a tensor counts as, by its name."""
    return next((role for role, pattern in _ROLES if pattern.search(name)), "other")


def loose(pieces: list[Piece]) -> tuple[list[Linear], list[Norm], list[Convolution], list[Piece]]:
    """Sort tensors into linear layers, norms, convolutions and the rest, each with its bias."""
    shapes = dict(pieces)
    linears: list[Linear] = []
    norms: list[Norm] = []
    convolutions: list[Convolution] = []
    taken = set()
    for name, shape in pieces:
        base, _, last = name.rpartition(".")
        if last != "weight" or not base:
            continue
        bias = shapes.get(f"{base}.bias")
        if len(shape) == 1 and is_norm(base):
            kind = "layer" if bias == shape else "rms"
            norms.append(
                Norm(kind="layer" if kind == "layer" else "rms", size=shape[0], name=base, bias=bias == shape)
            )
            own = bias == shape
        elif len(shape) == 2:
            # GPT-2's Conv1D has its outputs last, which its bias gives away.
            flipped = bias is not None and len(bias) == 1 and bias[0] == shape[1] != shape[0]
            outputs, inputs = shape[::-1] if flipped else shape
            own = bias == (outputs,)
            linears.append(
                Linear(
                    name=base,
                    inputs=inputs,
                    outputs=outputs,
                    bias=own,
                    inputs_first=flipped,
                    role=role_of(base),
                )
            )
        elif len(shape) in (3, 4, 5) and "expert" not in name:
            own = bias == (shape[0],)
            depthwise = shape[1] == 1 and shape[0] > 1
            convolutions.append(
                Convolution(
                    name=base,
                    inputs=shape[0] if depthwise else shape[1],
                    outputs=shape[0],
                    kernel=shape[2:],
                    groups=shape[0] if depthwise else 1,
                    bias=own,
                )
            )
        else:
            continue
        taken |= {name, f"{base}.bias"} if own else {name}
    return linears, norms, convolutions, [piece for piece in pieces if piece[0] not in taken]


def block_of(name: str, pieces: list[Piece], assumed: list[str]) -> Block:
    """One layer of its tensors; attention and feed-forward where their names are known."""
    merged, experts = _merge_experts(pieces)
    linears, norms, convolutions, rest = loose(merged)
    attention = _attention(linears, norms, assumed)
    used = {linear.name for linear in (*attention.projections, attention.output)} if attention else set()
    mlp = _mlp([linear for linear in linears if linear.name not in used])
    used |= {linear.name for linear in (*mlp.projections, mlp.output)} if mlp else set()
    inner = {norm.name for norm in (attention.query_norm, attention.key_norm) if norm} if attention else set()
    outer = [norm for norm in norms if norm.name not in inner]
    places = ["pre_mixer", "pre_feedforward"] if len(outer) == 2 else [norm.name for norm in outer]
    return Block(
        name=name,
        mixer=attention,
        feedforward=mlp,
        norms=tuple(zip(places, outer, strict=True)),
        linears=tuple(linear for linear in linears if linear.name not in used),
        convolutions=tuple(convolutions),
        extra=(*(Parameter(name=part, shape=shape, role=role_of(part)) for part, shape in rest), *experts),
    )


def _merge_experts(pieces: list[Piece]) -> tuple[list[Piece], list[Parameter]]:
    counts: dict[Piece, int] = defaultdict(int)
    others = []
    for name, shape in pieces:
        pattern = _EXPERT.sub("{}", name)
        if pattern == name:
            others.append((name, shape))
        else:
            counts[pattern, shape] += 1
    stacked = [
        Parameter(name=name, shape=(count, *shape), role="experts") for (name, shape), count in counts.items()
    ]
    return others, stacked


def _find(linears: list[Linear], names: tuple[str, ...], role: str | None = None) -> Linear | None:
    for linear in linears:
        if linear.name.rpartition(".")[2] in names and (role is None or linear.role == role):
            return linear
    return None


def _head_dim(sizes: list[int], norm: Norm | None, assumed: list[str]) -> int:
    if norm and norm.size < sizes[0] and all(size % norm.size == 0 for size in sizes):
        return norm.size
    # Heads of 128 in networks from 2048 wide on, of 64 below: true of 114 of 145 in the catalogue.
    wished = (128, 64) if sizes[0] >= 2048 else (64, 128)
    size = next((wish for wish in wished if all(one % wish == 0 for one in sizes)), min(sizes))
    assumed.append(f"attention heads of {size} values (tensor names don't tell)")
    return size


def _attention(linears: list[Linear], norms: list[Norm], assumed: list[str]) -> Attention | None:
    output = _find(linears, _OUTPUT, "attention")
    fused = _find(linears, _FUSED)
    parts = [_find(linears, names) for names in (_QUERY, _KEY, _VALUE)]
    found = [part for part in parts if part]
    query_norm = next(
        (norm for norm in norms if re.search(r"q_(layer)?norm$|attn_q_norm$|norm_q$", norm.name)), None
    )
    key_norm = next(
        (norm for norm in norms if re.search(r"k_(layer)?norm$|attn_k_norm$|norm_k$", norm.name)), None
    )
    if len(found) == 3 and output and found[1].outputs <= found[0].outputs == output.inputs:
        size = _head_dim([found[0].outputs, found[1].outputs, found[2].outputs], query_norm, assumed)
        heads, groups, value = found[0].outputs // size, found[1].outputs // size, found[2].outputs
        if not groups or heads % groups or value % groups:
            return None
        return Attention(
            heads=heads,
            kv_heads=groups,
            head_dim=size,
            value_dim=value // groups,
            projections=tuple(found),
            output=output,
            query_norm=query_norm,
            key_norm=key_norm,
        )
    if (
        fused
        and output
        and (fused.outputs - output.inputs) % 2 == 0
        and 0 < fused.outputs - output.inputs <= 2 * output.inputs
    ):
        keys = (fused.outputs - output.inputs) // 2
        size = _head_dim([output.inputs, keys], query_norm, assumed)
        heads, groups = output.inputs // size, keys // size
        if not groups or heads % groups:
            return None
        return Attention(
            heads=heads,
            kv_heads=groups,
            head_dim=size,
            value_dim=size,
            projections=(fused,),
            output=output,
            query_norm=query_norm,
            key_norm=key_norm,
        )
    return None


def _mlp(linears: list[Linear]) -> Mlp | None:
    by_last = {linear.name.rpartition(".")[2]: linear for linear in linears if linear.role != "attention"}
    for gate, up, down in _GATED:
        if gate in by_last and up in by_last and down in by_last:
            first, second, last = by_last[gate], by_last[up], by_last[down]
            if first.outputs == second.outputs == last.inputs:
                return Mlp(
                    width=last.inputs, gated=True, activation="silu", projections=(first, second), output=last
                )
    for up, down in _PLAIN:
        if up in by_last and down in by_last:
            first, last = by_last[up], by_last[down]
            if first.outputs in (last.inputs, 2 * last.inputs):
                gated = first.outputs == 2 * last.inputs
                kind = "silu" if gated else "gelu"
                return Mlp(width=last.inputs, gated=gated, activation=kind, projections=(first,), output=last)
    return None
