"""Sets a spec read from a config against the tensors stored beside it, and says where the two disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from loadmaster.models.parameters import parameter_count, tensors
from loadmaster.models.readers.headers import PLAIN, Stub
from loadmaster.models.spec import ModelSpec

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_BUFFERS = (
    "rotary_emb.inv_freq", "rotary_pos_emb.inv_freq", ".attn.bias", ".attn.masked_bias", ".attention.bias",
    ".attention.masked_bias", "position_ids", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
    "e_score_correction_bias", "rope_freqs.weight",
)  # fmt: skip
"""Stored tensors that are buffers, not parameters: rotary tables, causal masks, router corrections."""
_SCALES = (
    "_scale_inv",
    ".weight_scale",
    ".input_scale",
    "_scales",
    ".scales",
    ".qzeros",
    ".g_idx",
    ".absmax",
)
_SHOWN = 3


def contradictions(spec: ModelSpec, stubs: Iterable[Stub]) -> list[str]:
    """Sentences about shapes, ties and counts that differ; empty where config and files agree."""
    stubs = tuple(stubs)
    found = [*_ties(spec, stubs), *_shapes(spec, stubs)]
    if all(stub.dtype in PLAIN for stub in stubs):
        found += _count(spec, stubs)
    return found


def _pattern(name: str) -> str:
    return _NUMBER.sub("{}", name)


def _ties(spec: ModelSpec, stubs: tuple[Stub, ...]) -> list[str]:
    if spec.head is None:
        return []
    names = {stub.name for stub in stubs}
    has_head = f"{spec.head.name}.weight" in names
    tables = {
        f"{table.name}.weight" for tower in spec.towers for table in tower.embeddings if table.role == "token"
    }
    if spec.head.tied and has_head and tables & names:
        return [
            f"{spec.head.name}.weight is stored although the config ties it to the token table; counted once"
        ]
    if not spec.head.tied and not has_head and tables & names:
        return [
            f"the config does not tie the head, but the files have no {spec.head.name}.weight: it may be tied"
        ]
    return []


def _shapes(spec: ModelSpec, stubs: tuple[Stub, ...]) -> list[str]:
    expected: dict[str, set[tuple[int, ...]]] = {}
    for tensor in tensors(spec):
        expected.setdefault(_pattern(tensor.name), set()).add(tensor.shape)
    wrong = []
    for stub in stubs:
        shapes = expected.get(_pattern(stub.name))
        if shapes is None or stub.dtype not in PLAIN:
            continue
        # A transposed weight is the same layer in another convention.
        if stub.shape not in shapes and stub.shape[::-1] not in shapes:
            wrong.append(f"{stub.name} is {_by(stub.shape)} in the files, {_by(min(shapes))} by the config")
    more = (
        [f"{len(wrong) - _SHOWN} more tensors have other shapes than the config says"]
        if len(wrong) > _SHOWN
        else []
    )
    return wrong[:_SHOWN] + more


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a single value"


_MOST_PREDICTORS = 3
"""Layers for multi-token prediction behind the last one: released models have one (DeepSeek-V3, GLM-4.5, Qwen3-Next)."""


def _count(spec: ModelSpec, stubs: tuple[Stub, ...]) -> list[str]:
    layers = len(spec.decoder.layout)
    known: Counter[str] = Counter()
    values = 0
    tied_head = f"{spec.head.name}.weight" if spec.head and spec.head.tied else None
    for stub in stubs:
        match = _LAYER.search(stub.name)
        if stub.name.endswith(_BUFFERS):
            known["buffers"] += stub.values
        elif stub.name.endswith(_SCALES):
            known["quantisation scales"] += stub.values
        elif stub.name == tied_head:
            known["the tied head"] += stub.values
        elif stub.name.startswith("mtp.") or (
            len(spec.towers) == 1 and match and layers <= int(match[1][:9]) < layers + _MOST_PREDICTORS
        ):
            known["multi-token prediction"] += stub.values
        else:
            values += stub.values
    notes = []
    if known["multi-token prediction"]:
        count = known["multi-token prediction"]
        notes.append(
            f"{count:,} stored parameters belong to multi-token prediction layers that are not loaded"
        )
    described = parameter_count(spec)
    if values != described:
        notes.append(
            f"the files hold {values:,} parameters, the config describes {described:,} ({values - described:+,})"
        )
    return notes
