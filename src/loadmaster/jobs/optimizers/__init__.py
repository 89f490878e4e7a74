"""Optimizers, one file each: which state tensors a parameter gets, and what a step allocates besides.

A file has NAME, IMPLEMENTATIONS (the default on CUDA first), SOURCE, ``states(tensor, how)``, the bytes of each state tensor
of one trained tensor, and ``step_bytes(tensors, how)``, the highest temporary of a step over all of them. ``paged(tensor,
how)``, where there is one, says how much of the states is in memory that PyTorch doesn't count; ``states_wide`` and
``paged_wide`` what they are for a tensor that a library exempts from 8 bits.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from loadmaster.errors import UnknownNameError

_ALIASES = {
    "adam": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
    "adamw8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit", "adam8bit": "adamw_8bit", "adam_8bit": "adamw_8bit",
    "sgd_momentum": "sgdm", "momentum": "sgdm",
    "lion_32bit": "lion", "lion8bit": "lion_8bit",
    "paged_adamw_32bit": "paged_adamw", "pagedadamw": "paged_adamw", "pagedadamw32bit": "paged_adamw",
    "pagedadamw8bit": "paged_adamw_8bit", "galore": "galore_adamw", "sophiag": "sophia",
}  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Every optimizer that has a file here."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py")))


@cache
def find(name: str) -> ModuleType:
    """The file of an optimizer; raises UnknownNameError with the nearest names."""
    key = name.lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    known = names()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=3)
        near = sorted(near, key=lambda other: other[:1] != key[:1])[:1]
        raise UnknownNameError("optimizer", name, near, hint=f"choices: {', '.join(known)}")
    return importlib.import_module(f"loadmaster.jobs.optimizers.{key}")
