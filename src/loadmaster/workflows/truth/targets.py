"""LoRA targets as sources name them (``q``, ``output_proj``, ``output(head)``), found in a model's own module names."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.parameters import tensors
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Record
from loadmaster.workflows.truth.words import FUSED, ROLES, role_of


class Found(Record, kw_only=True):
    """Names for ``Lora.targets``, what this model has nothing for, and which of them hold several matrices in one."""

    targets: tuple[str, ...]
    missing: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()


def lora_targets(spec: ModelSpec, stated: Sequence[str]) -> Found:
    """The modules of ``spec`` that these targets mean; names that the model has itself are taken as they are."""
    if [t.lower() for t in stated] in (["all-linear"], ["all"]):
        return Found(targets=("all-linear",))
    own = sorted({name.rpartition(".")[2] for name in linear_names(spec)})
    targets: list[str] = []
    missing: list[str] = []
    fused: list[str] = []
    for target in stated:
        last = target.rpartition(".")[2]
        if last in own:
            targets.append(last)
            continue
        role = role_of(target)
        same = [name for name in own if role is not None and name in ROLES[role]]
        joint = [name for name in own if name in FUSED] if role in ("query", "key", "value") else []
        if same:
            targets += same
        elif joint:
            targets += joint
            fused += joint
        else:
            missing.append(target)
    return Found(
        targets=tuple(dict.fromkeys(targets)), missing=tuple(missing), fused=tuple(dict.fromkeys(fused))
    )


def linear_names(spec: ModelSpec) -> list[str]:
    """Module names of the linear layers inside the model's layers, without ``.weight``."""
    return [t.name.removesuffix(".weight") for t in tensors(spec) if t.linear and t.layer is not None]
