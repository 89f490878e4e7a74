"""From a ModelSpec to its parameter tensors: counted, by role, active per token, with KV bytes and FLOPs per token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Literal, get_args

from loadmaster.dtypes import BITS
from loadmaster.models.spec import (
    Attention,
    Block,
    Convolution,
    Experts,
    FeedForward,
    Head,
    Linear,
    Mlp,
    ModelSpec,
    Norm,
    Parameter,
    StateSpace,
    Tower,
)
from loadmaster.records import Record

Role = Literal[
    "embedding",
    "position",
    "attention",
    "mlp",
    "experts",
    "router",
    "mixer",
    "convolution",
    "norm",
    "head",
    "vision",
    "audio",
    "other",
]
ROLES: tuple[str, ...] = get_args(Role)


class Tensor(Record, kw_only=True):
    """One kind of parameter tensor and how often it is there. ``name`` holds ``{}`` for each number that runs (layer,
    expert); ``linear``: the 2-D weight of a linear layer, so quantisable and a LoRA target; ``layer`` is the kind of
    block it is in, None outside the layers."""

    role: str
    name: str
    shape: tuple[int, ...]
    count: int = 1
    linear: bool = False
    tower: str | None = None
    layer: str | None = None
    derived: bool = False
    """The matrix of a class derived from torch.nn.Linear."""
    kept: bool = False
    """The matrix of a linear layer that 4-bit loaders leave as it is."""

    @property
    def values(self) -> int:
        """Values in all its copies together."""
        return prod(self.shape) * self.count


class KvLayers(Record, kw_only=True):
    """``layers`` layers that each keep ``values`` numbers of every token they can still see; ``window`` is the most
    tokens kept (None: all), ``cross``: the tokens are another tower's."""

    layers: int
    values: int
    window: int | None = None
    cross: bool = False


def tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Every parameter tensor of the network, repeated ones once with their count; shared ones once."""
    found: list[Tensor] = []
    text = any(tower.modality == "text" for tower in spec.towers)
    for tower in spec.towers:
        side = tower.modality if text and tower.modality in ("vision", "audio") else None
        for tensor in _tower(tower):
            found.append(_replace(tensor, role=side) if side else tensor)
    if spec.head:
        found.extend(_head(spec.head))
    return tuple(found)


def parameter_count(spec: ModelSpec) -> int:
    """Number of parameters, tied ones once, buffers not."""
    return sum(tensor.values for tensor in tensors(spec))


def by_role(spec: ModelSpec) -> dict[str, int]:
    """Parameters of each role that occurs, in the order of ROLES."""
    sums: Counter[str] = Counter()
    for tensor in tensors(spec):
        sums[tensor.role] += tensor.values
    return {role: sums[role] for role in ROLES if sums[role]}


def active_parameters(spec: ModelSpec) -> int:
    """Parameters that one token meets: all but the experts its routers leave out (embedding tables are counted)."""
    return parameter_count(spec) - sum(_idle(tower) for tower in spec.towers)


def kv_layers(spec: ModelSpec, *, latent: bool = False) -> tuple[KvLayers, ...]:
    """What each layer keeps of a token in the KV cache. MLA: keys and values of all heads, as transformers caches them
    (modeling_deepseek_v3, ``key_states`` and ``value_states`` go to the cache expanded), or with ``latent`` the
    compressed vector and one rotary key (arXiv:2405.04434 §2.1.4: 512 + 64 for DeepSeek-V2), as serving engines do."""
    counts: Counter[tuple[int, int | None, bool]] = Counter()
    for tower in _caching_towers(spec):
        repeats = Counter(tower.layout)
        for index, block in enumerate(tower.blocks):
            for mixer in (block.mixer, block.cross):
                if not isinstance(mixer, Attention) or mixer.shares_kv or not (mixer.causal or mixer.cross):
                    continue
                if latent and mixer.latent:
                    values = mixer.latent.kv_rank + mixer.latent.rope_dim
                else:
                    values = (mixer.cached_heads or mixer.kv_heads) * (mixer.head_dim + mixer.value_dim)
                counts[values, mixer.window, mixer.cross] += repeats[index]
    return tuple(
        KvLayers(layers=layers, values=values, window=window, cross=cross)
        for (values, window, cross), layers in counts.items()
    )


def generates(spec: ModelSpec) -> bool:
    """Whether it writes token by token, with a cache or state of what was before: encoders and image models don't."""
    return bool(kv_layers(spec) or state_bytes(spec, "bfloat16"))


def kv_bytes_per_token(spec: ModelSpec, dtype: str = "bfloat16", *, latent: bool = False) -> int:
    """Bytes that one more token of one sequence adds to the KV cache while no sliding window is full yet."""
    values = sum(kv.layers * kv.values for kv in kv_layers(spec, latent=latent) if not kv.cross)
    return values * BITS[dtype] // 8


def kv_bytes(
    spec: ModelSpec, tokens: int, dtype: str = "bfloat16", *, latent: bool = False, cross_tokens: int = 0
) -> int:
    """Bytes of the KV cache of one sequence of ``tokens``, sliding windows full at their size."""
    values = 0
    for kv in kv_layers(spec, latent=latent):
        kept = cross_tokens if kv.cross else tokens
        values += kv.layers * kv.values * (kept if kv.window is None else min(kept, kv.window))
    return values * BITS[dtype] // 8


def state_bytes(spec: ModelSpec, dtype: str = "bfloat16") -> int:
    """Bytes of the recurrent states of one sequence, whatever its length: state and short convolution of each mixer.

    Mamba 1: inner × state; Mamba 2: heads × head_dim × state (arXiv:2405.21060 §7.1); gated delta rule: heads ×
    key × value size (arXiv:2412.06464 §3); convolution: channels × kernel, as transformers' caches hold them.
    """
    values = 0
    for tower in spec.towers:
        repeats = Counter(tower.layout)
        for index, block in enumerate(tower.blocks):
            mixer = block.mixer
            if isinstance(mixer, StateSpace):
                values += repeats[index] * (
                    mixer.inner * mixer.state + mixer.conv_channels * mixer.conv_kernel
                )
    return values * BITS[dtype] // 8


def flops_per_token(spec: ModelSpec, context: int = 0) -> int:
    """FLOPs of one token's forward pass when it attends to ``context`` keys: two for each weight it is multiplied with
    (arXiv:2001.08361 §2.1), and in each layer two for each number of the keys and values it meets
    (arXiv:2204.02311 appendix B: 4 × heads × head size × length). The tower that meets the head is counted."""
    tower = spec.decoder
    repeats = Counter(tower.layout)
    total = 0
    for index, block in enumerate(tower.blocks):
        matmul = 0
        for tensor in _block(block):
            if tensor.linear or tensor.role in ("experts", "router"):
                matmul += tensor.values
        matmul -= _idle_block(block)
        attend = 0
        for mixer in (block.mixer, block.cross):
            if isinstance(mixer, Attention):
                seen = context if mixer.window is None else min(context, mixer.window)
                attend += mixer.heads * (mixer.head_dim + mixer.value_dim) * seen
        total += repeats[index] * 2 * (matmul + attend)
    if spec.head:
        total += 2 * spec.head.vocab * spec.head.inputs
    return total


def _caching_towers(spec: ModelSpec) -> list[Tower]:
    # Without a head nothing is generated, so nothing is cached (BERT, CLIP).
    return [tower for tower in spec.towers if tower.modality == "text"] if spec.head else []


def _tower(tower: Tower) -> Iterator[Tensor]:
    for table in tower.embeddings:
        role = (
            "embedding" if table.role == "token" else "position" if table.role == "position" else "embedding"
        )
        yield Tensor(
            role=role, name=f"{table.name}.weight", shape=(table.rows, table.width), tower=tower.name
        )
    repeats = Counter(tower.layout)
    for index, block in enumerate(tower.blocks):
        for tensor in _block(block):
            yield Tensor(
                role=tensor.role,
                name=f"{tower.prefix}.{{}}.{tensor.name}" if tower.prefix else tensor.name,
                shape=tensor.shape,
                count=tensor.count * repeats[index],
                linear=tensor.linear,
                tower=tower.name,
                layer=block.name,
                kept=tensor.kept,
                derived=tensor.derived,
            )
    for tensor in (
        *_norms("norm", (norm for _, norm in tower.norms)),
        *_linears("other", tower.linears),
        *_convolutions(tower.convolutions),
        *_parameters("other", tower.extra),
    ):
        yield _replace(tensor, tower=tower.name)


def _block(block: Block) -> Iterator[Tensor]:
    for mixer in (block.mixer, block.cross):
        if isinstance(mixer, Attention):
            yield from _linears("attention", (*mixer.projections, mixer.output))
            norms = [norm for norm in (mixer.query_norm, mixer.key_norm) if norm]
            yield from _norms("norm", norms)
            yield from _norms("norm", (norm for _, norm in mixer.inner_norms))
            yield from _parameters("attention", mixer.extra)
        elif isinstance(mixer, StateSpace):
            yield from _linears("mixer", (*mixer.projections, mixer.output))
            yield from _parameters("mixer", mixer.extra)
            yield from _norms("norm", (norm for _, norm in mixer.inner_norms))
    if block.feedforward:
        yield from _feedforward(block.feedforward)
    yield from _norms("norm", (norm for _, norm in block.norms))
    yield from _linears("other", block.linears)
    yield from _convolutions(block.convolutions)
    yield from _parameters("other", block.extra)


def _feedforward(part: FeedForward) -> Iterator[Tensor]:
    if isinstance(part, Mlp):
        yield from _linears("mlp", (*part.projections, part.output))
        return
    yield from _router(part)
    for linear in (*part.expert.projections, part.expert.output):
        if part.stacked:
            sides = (linear.inputs, linear.outputs) if part.inputs_first else (linear.outputs, linear.inputs)
            yield Tensor(role="experts", name=linear.name, shape=(part.count, *sides))
            if linear.bias:
                yield Tensor(role="experts", name=f"{linear.name}_bias", shape=(part.count, linear.outputs))
        else:
            for tensor in _linears("experts", (linear,)):
                yield _replace(tensor, count=part.count)
    if part.shared:
        yield from _linears("mlp", (*part.shared.projections, part.shared.output))
    yield from _parameters("router", part.extra)


def _router(part: Experts) -> Iterator[Tensor]:
    # Most of transformers' routers keep a bare weight and no nn.Linear, so that neither LoRA nor 4-bit loaders touch them.
    router = part.router
    yield Tensor(
        role="router",
        name=f"{router.name}.weight",
        shape=(router.outputs, router.inputs),
        linear=router.derived,
        derived=router.derived,
    )
    if router.bias:
        yield Tensor(role="router", name=f"{router.name}.bias", shape=(router.outputs,))
    if part.shared_gate:
        yield from _linears("router", (part.shared_gate,))


def _head(head: Head) -> Iterator[Tensor]:
    yield from _linears("head", head.linears)
    yield from _norms("norm", (norm for _, norm in head.norms))
    yield from _parameters("head", head.extra)
    if not head.tied:
        yield Tensor(role="head", name=f"{head.name}.weight", shape=(head.vocab, head.inputs), linear=True)
    if head.bias:
        yield Tensor(role="head", name=f"{head.name}.bias", shape=(head.vocab,))


def _linears(role: str, linears: Iterable[Linear]) -> Iterator[Tensor]:
    for linear in linears:
        sides = (linear.inputs, linear.outputs) if linear.inputs_first else (linear.outputs, linear.inputs)
        yield Tensor(
            role=linear.role or role,
            name=f"{linear.name}.weight",
            shape=sides,
            linear=True,
            kept=linear.kept,
            derived=linear.derived,
        )
        if linear.bias:
            yield Tensor(role=linear.role or role, name=f"{linear.name}.bias", shape=(linear.outputs,))


def _convolutions(layers: Iterable[Convolution]) -> Iterator[Tensor]:
    for layer in layers:
        shape = (layer.outputs, layer.inputs // layer.groups, *layer.kernel)
        yield Tensor(role="convolution", name=f"{layer.name}.weight", shape=shape)
        if layer.bias:
            yield Tensor(role="convolution", name=f"{layer.name}.bias", shape=(layer.outputs,))


def _norms(role: str, norms: Iterable[Norm]) -> Iterator[Tensor]:
    for norm in norms:
        if norm.weight:
            yield Tensor(role=role, name=f"{norm.name}.weight", shape=(norm.size,))
        if norm.bias:
            yield Tensor(role=role, name=f"{norm.name}.bias", shape=(norm.size,))


def _parameters(role: str, parameters: Iterable[Parameter]) -> Iterator[Tensor]:
    for parameter in parameters:
        yield Tensor(role=parameter.role or role, name=parameter.name, shape=parameter.shape)


def _idle(tower: Tower) -> int:
    repeats = Counter(tower.layout)
    return sum(repeats[index] * _idle_block(block) for index, block in enumerate(tower.blocks))


def _idle_block(block: Block) -> int:
    part = block.feedforward
    if not isinstance(part, Experts):
        return 0
    one = sum(tensor.values for tensor in _feedforward(part) if tensor.role == "experts") // part.count
    return one * (part.count - part.per_token)


def _replace(tensor: Tensor, **changes: object) -> Tensor:
    from msgspec.structs import replace

    return replace(tensor, **changes)
