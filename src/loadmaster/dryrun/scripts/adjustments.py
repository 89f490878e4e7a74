"""Changes to libraries for the time of a dry run, made when the program imports them: a dry run imports none itself."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from loadmaster.dryrun.session import Session
from loadmaster.dryrun.tensors import Patches

Patch = Callable[[Any, "Adjustments"], None]


class Adjustments:
    """What a library's patch works with. ``skipped`` counts what the program asked for and didn't get."""

    def __init__(self, patches: Patches, session: Session, skipped: Counter[str]) -> None:
        self.patches, self.session, self.skipped = patches, session, skipped

    def skip(self, owner: Any, name: str, what: str, answer: Any = None) -> None:
        """Instead of a function that writes: count it, and return ``answer``. Does nothing where the library has no such."""
        if not hasattr(owner, name):
            return

        def skipped(*_: Any, **__: Any) -> Any:
            self.skipped[what] += 1
            return answer

        self.patches.set(owner, name, skipped)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put ``make(what is there)`` in its place; does nothing where the library has no such."""
        if hasattr(owner, name):
            self.patches.set(owner, name, make(getattr(owner, name)))


def install(patches: Patches, session: Session, skipped: Counter[str]) -> None:
    """Change what is imported, and what will be."""
    adjustments = Adjustments(patches, session, skipped)
    table = _table()
    finder = _Finder(table, adjustments)
    patches.set(sys, "meta_path", [finder, *sys.meta_path])
    for name, found in table.items():
        module = sys.modules.get(name)
        if module is not None:
            for patch in found:
                patch(module, adjustments)


def _table() -> dict[str, list[Patch]]:
    from loadmaster.dryrun.scripts import libraries

    table: dict[str, list[Patch]] = {}
    for each in pkgutil.iter_modules(libraries.__path__):
        library = importlib.import_module(f"{libraries.__name__}.{each.name}")
        for name, patch in library.PATCHES.items():
            table.setdefault(name, []).append(patch)
    return table


class _Finder(MetaPathFinder):
    """Finds modules as Python does; those in the table are changed once they have run."""

    def __init__(self, table: dict[str, list[Patch]], adjustments: Adjustments) -> None:
        self.table, self.adjustments = table, adjustments

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module in the table."""
        if fullname not in self.table:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            del loader.exec_module
            for patch in self.table[fullname]:
                patch(sys.modules.get(fullname, module), self.adjustments)

        loader.exec_module = exec_module
        return spec
