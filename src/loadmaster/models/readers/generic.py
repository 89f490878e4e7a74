"""Reads a network that no family describes from its tensors' names and shapes: stacks of layers are recognised by
their running numbers, parts by common names. What names can't tell is assumed, and the spec says so."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from loadmaster.errors import BadFileError
from loadmaster.models.config import LAYER_LIMIT
from loadmaster.models.readers.headers import Stub, TensorFile, stored
from loadmaster.models.readers.parts import block_of, is_norm, loose, role_of
from loadmaster.models.spec import Block, Embedding, Head, Linear, ModelSpec, Norm, Parameter, Tower

_NUMBER = re.compile(r"(?<=\.)(\d{1,5})(?=\.)")
_BUFFER = re.compile(r"inv_freq$|position_ids$|rope_freqs|num_batches_tracked$|running_(mean|var)$")
_POSITION = re.compile(r"pos|wpe")
_TOKEN = re.compile(r"embed|wte|tok|shared$")
_HEADS = ("lm_head", "output", "embed_out", "proj_out", "output_layer", "head", "classifier", "score")
TENSOR_LIMIT = 1_000_000
"""Most tensors that are looked at; DeepSeek-V3, the most cut up of the published models, has 91,991."""

Piece = tuple[str, tuple[int, ...]]


def read(files: Iterable[TensorFile], origin: str, *, model_type: str = "unknown") -> ModelSpec:
    """The ModelSpec of tensors alone; raises BadFileError when there are none."""
    files = tuple(files)
    stubs = [stub for file in files for stub in file.stubs if stub.values and not _BUFFER.search(stub.name)]
    if not stubs:
        raise BadFileError(origin, "holds no tensors")
    if len(stubs) > TENSOR_LIMIT:
        raise BadFileError(origin, f"holds {len(stubs)} tensors, more than any network has")
    held = stored(files)
    stacks, outside = _split(stubs)
    assumed: list[str] = []
    towers = [_tower(prefix, layers, assumed) for prefix, layers in stacks.items()]
    towers, head = _outside(towers, outside, assumed)
    warnings = [
        "no family describes this network: layers and parts are recognised by tensor names, sizes may be off"
    ]
    if held.parameters is None:
        warnings.append("the files hold packed values, so shapes are those of the packed tensors")
    return ModelSpec(
        name=origin,
        model_type=model_type,
        towers=tuple(towers),
        head=head,
        stored_dtype=max(held.by_dtype_bytes, key=held.by_dtype_bytes.__getitem__),
        stored=held,
        origin=origin,
        warnings=tuple(warnings),
        assumed=tuple(dict.fromkeys(assumed)),
        exact=False,
    )


def _split(stubs: list[Stub]) -> tuple[dict[str, dict[int, list[Piece]]], list[Piece]]:
    numbered: dict[str, dict[int, list[Piece]]] = defaultdict(lambda: defaultdict(list))
    outside: list[Piece] = []
    for stub in stubs:
        match = _NUMBER.search(stub.name)
        if match and int(match[1]) < LAYER_LIMIT:
            numbered[stub.name[: match.start() - 1]][int(match[1])].append(
                (stub.name[match.end() + 1 :], stub.shape)
            )
        else:
            outside.append((stub.name, stub.shape))
    stacks = {}
    for prefix, layers in numbered.items():
        # One number, or numbers with holes, are a list of parts and no stack of layers.
        if len(layers) > 1 and set(layers) == set(range(len(layers))):
            stacks[prefix] = layers
        else:
            for number, pieces in layers.items():
                outside += [(f"{prefix}.{number}.{name}", shape) for name, shape in pieces]
    return stacks, outside


def _tower(prefix: str, layers: dict[int, list[Piece]], assumed: list[str]) -> Tower:
    kinds: dict[tuple[Piece, ...], int] = {}
    blocks: list[Block] = []
    layout = []
    for index in range(len(layers)):
        key = tuple(sorted(layers[index]))
        if key not in kinds:
            kinds[key] = len(blocks)
            blocks.append(block_of(f"layer_{len(blocks)}", list(layers[index]), assumed))
        layout.append(kinds[key])
    widths = [norm.size for block in blocks for _, norm in block.norms] or [_widest(blocks[0])]
    return Tower(
        name=prefix.rpartition(".")[2] if len(prefix) < 80 else "layers",
        hidden=max(set(widths), key=widths.count),
        prefix=prefix,
        blocks=tuple(blocks),
        layout=tuple(layout),
        modality="vision" if re.search(r"vis|image|clip", prefix) else "text",
    )


def _widest(block: Block) -> int:
    linears = block.linears
    return max((linear.inputs for linear in linears), default=1)


def _outside(towers: list[Tower], pieces: list[Piece], assumed: list[str]) -> tuple[list[Tower], Head | None]:
    from loadmaster.records import replace

    if not towers:
        towers = [Tower(name="network", hidden=1, blocks=(), layout=())]
    # What is outside the layers goes with the biggest stack of text.
    main = max(towers, key=lambda tower: (tower.modality == "text", tower.hidden * len(tower.layout)))
    linears, norms, convolutions, rest = loose(pieces)
    tables: list[Embedding] = []
    head: Head | None = None
    kept: list[Linear] = []
    for linear in linears:
        last = linear.name.rpartition(".")[2]
        if _POSITION.search(last) or _TOKEN.search(last):
            role = "position" if _POSITION.search(last) else "token"
            rows, width = linear.outputs, linear.inputs
            tables.append(
                Embedding(
                    name=linear.name,
                    role="position" if role == "position" else "token",
                    rows=rows,
                    width=width,
                )
            )
        elif last in _HEADS and head is None:
            per_token = last not in ("classifier", "score", "head")
            head = Head(
                name=linear.name,
                vocab=linear.outputs,
                inputs=linear.inputs,
                tied=False,
                bias=linear.bias,
                per_token=per_token,
            )
        else:
            kept.append(linear)
    token = next((table for table in tables if table.role == "token"), None)
    if head is None and token is not None and main.modality == "text":
        head = Head(vocab=token.rows, inputs=token.width, tied=True)
        assumed.append("the head shares the token table, because no head is stored")
    hidden = (
        main.hidden if main.hidden > 1 else token.width if token else max((x.inputs for x in kept), default=1)
    )
    full = replace(
        main,
        hidden=hidden,
        embeddings=tuple(tables),
        norms=tuple((_place(norm), norm) for norm in norms),
        linears=tuple(kept),
        convolutions=tuple(convolutions),
        extra=tuple(Parameter(name=name, shape=shape, role=role_of(name)) for name, shape in rest),
    )
    return [full if tower is main else tower for tower in towers], head


def _place(norm: Norm) -> str:
    return "final" if is_norm(norm.name) else norm.name
