"""Loadmaster predicts GPU and host memory before a job starts, and plans the cheapest way to make it fit.

``import loadmaster as lm``: each function of ``__all__`` is loaded when it is first asked for. Importing does nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.workflows.dryrun import dryrun
    from loadmaster.workflows.plan import plan

__version__ = "0.1.0"
__all__ = ["__version__", "dryrun", "plan"]

_FUNCTIONS = {"dryrun": "loadmaster.workflows.dryrun", "plan": "loadmaster.workflows.plan"}
"""Public function → the module that defines it."""


class _Package(ModuleType):
    """This package: ``loadmaster.plan`` stays the function when the room of that name, ``loadmaster/plan``, is
    imported, and so does ``loadmaster.dryrun``. (Inside, ``from loadmaster.plan import ...`` goes by module names and always
    means the room.)"""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _FUNCTIONS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(importlib.import_module(_FUNCTIONS[name]), name)
    setattr(sys.modules[__name__], name, function)
    return function


def __dir__() -> list[str]:
    return sorted(__all__)


sys.modules[__name__].__class__ = _Package
