"""Model families: one file for each ``model_type`` of a config, found by its name (dashes become underscores).

A family has ``read(config) -> ModelSpec``; one that other models nest has also ``text(config, root) -> (Tower, Head)``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from loadmaster.errors import UnknownNameError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Every ``model_type`` that has a family, as its file is called."""
    return sorted(path.stem for path in _FOLDER.glob("[!_]*.py"))


def load(model_type: str, *, origin: str = "") -> ModuleType:
    """The family's module; raises UnknownNameError, with near families, for a ``model_type`` that has none."""
    name = model_type.replace("-", "_").replace(".", "_")
    if not name.isidentifier() or name.startswith("_") or not (_FOLDER / f"{name}.py").is_file():
        import difflib

        raise UnknownNameError(
            "model_type",
            model_type[:80],
            difflib.get_close_matches(name, names(), n=3),
            hint="what can still be said: give the folder with its safetensors files (headers are enough), "
            "or --params with its number of parameters" + (f" ({origin})" if origin else ""),
        )
    return importlib.import_module(f"loadmaster.models.families.{name}")
