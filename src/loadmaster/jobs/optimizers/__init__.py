"""Optimizers, one file each: which state tensors a parameter gets, and what a step allocates besides.

A file has NAME, IMPLEMENTATIONS (the default on CUDA first), STATES (state tensors a parameter), SOURCE,
``state_bytes(elements, dtype)`` for one parameter tensor and ``step_bytes(implementation, total, largest)``, the
highest temporary of a step, where total and largest are the state bytes of one moment over all trained parameters and
of the largest one.
"""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from types import ModuleType

from loadmaster.errors import UnknownNameError

_ALIASES = {
    "adam": "adamw",
    "adamw_torch": "adamw",
    "adamw8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "adam8bit": "adamw_8bit",
    "sgd_momentum": "sgdm",
    "momentum": "sgdm",
}


def names() -> list[str]:
    """Every optimizer that has a file here."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def find(name: str) -> ModuleType:
    """The file of an optimizer; raises UnknownNameError with the nearest names."""
    key = name.lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    known = names()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        raise UnknownNameError("optimizer", name, near, hint=f"choices: {', '.join(known)}")
    return importlib.import_module(f"loadmaster.jobs.optimizers.{key}")
