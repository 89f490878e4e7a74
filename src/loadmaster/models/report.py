"""What follows from one model's shapes, gathered for people: layers in words, parameters, cache, FLOPs."""

from __future__ import annotations

from collections import Counter

from loadmaster.models.parameters import (
    KvLayers,
    active_parameters,
    by_role,
    flops_per_token,
    kv_bytes_per_token,
    kv_layers,
    parameter_count,
    state_bytes,
)
from loadmaster.models.spec import Attention, Block, Experts, ModelSpec, StateSpace
from loadmaster.records import Record

CACHE_DTYPE = "bfloat16"


class Listed(Record, kw_only=True):
    """A line of the catalogue. ``kv_bytes`` is what a token adds to a bfloat16 cache, None without one."""

    name: str
    family: str
    parameters: int
    active: int
    layers: int
    kv_bytes: int | None


class Layers(Record, kw_only=True):
    """A kind of layer of a tower: how many, and in words what is in it."""

    tower: str
    count: int
    mixer: str
    feedforward: str


class Shown(Record, kw_only=True):
    """One model. Sizes are bytes of one sequence in the named cache format; FLOPs are of one token's forward pass."""

    spec: ModelSpec
    parameters: int
    active: int
    roles: dict[str, int]
    layers: tuple[Layers, ...]
    cache_dtype: str
    kv: tuple[KvLayers, ...]
    kv_bytes_per_token: int
    latent_bytes_per_token: int | None
    state_bytes: int
    flops_per_token: int | None
    flops_at_length: int | None


def listed(spec: ModelSpec) -> Listed:
    """The model's line in the catalogue."""
    return Listed(
        name=spec.name,
        family=spec.model_type,
        parameters=parameter_count(spec),
        active=active_parameters(spec),
        layers=len(spec.decoder.layout),
        kv_bytes=kv_bytes_per_token(spec, CACHE_DTYPE) or None,
    )


def shown(spec: ModelSpec) -> Shown:
    """What follows from the model's shapes."""
    plain = kv_bytes_per_token(spec, CACHE_DTYPE)
    latent = kv_bytes_per_token(spec, CACHE_DTYPE, latent=True)
    length = spec.max_positions
    # A convolution's work depends on the plane, so an image network has no figure per token.
    counted = not spec.decoder.modality.startswith("image")
    return Shown(
        spec=spec,
        parameters=parameter_count(spec),
        active=active_parameters(spec),
        roles=by_role(spec),
        layers=_layers(spec),
        cache_dtype=CACHE_DTYPE,
        kv=kv_layers(spec),
        kv_bytes_per_token=plain,
        latent_bytes_per_token=latent if latent != plain else None,
        state_bytes=state_bytes(spec, CACHE_DTYPE),
        flops_per_token=flops_per_token(spec) if counted else None,
        flops_at_length=flops_per_token(spec, length) if counted and length else None,
    )


def _layers(spec: ModelSpec) -> tuple[Layers, ...]:
    found: Counter[tuple[str, str, str]] = Counter()
    for tower in spec.towers:
        repeats = Counter(tower.layout)
        for index, block in enumerate(tower.blocks):
            found[tower.name, _mixer(block), _feedforward(block)] += repeats[index]
    return tuple(
        Layers(tower=tower, count=count, mixer=mixer, feedforward=feedforward)
        for (tower, mixer, feedforward), count in found.items()
    )


def _mixer(block: Block) -> str:
    words = []
    if isinstance(block.mixer, StateSpace):
        words.append(
            f"{block.mixer.kind.replace('_', ' ')}, inner {block.mixer.inner}, state {block.mixer.state}"
        )
    elif isinstance(block.mixer, Attention):
        words.append(_attention(block.mixer))
    if block.cross:
        words.append(f"cross {_attention(block.cross)}")
    if block.convolutions:
        words.append(f"{len(block.convolutions)} convolution{'s' if len(block.convolutions) > 1 else ''}")
    return " + ".join(words) or "none"


def _attention(of: Attention) -> str:
    if of.latent:
        ranks = f"latent {of.latent.kv_rank} + {of.latent.rope_dim}"
        return f"attention {of.heads} heads × {of.head_dim}/{of.value_dim}, {ranks}"
    groups = "" if of.kv_heads == of.heads else f", {of.kv_heads} key-value"
    window = f", window {of.window}" if of.window else ""
    shared = ", reads an earlier layer's keys" if of.shares_kv else ""
    return f"attention {of.heads} heads × {of.head_dim}{groups}{window}{shared}"


def _feedforward(block: Block) -> str:
    part = block.feedforward
    if part is None:
        return "none"
    if isinstance(part, Experts):
        shared = f", shared {part.shared.width}" if part.shared else ""
        return f"{part.per_token} of {part.count} experts × {part.expert.width}{shared}"
    return f"{'gated ' if part.gated else ''}{part.activation} {part.width}"
