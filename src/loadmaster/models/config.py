"""A config.json while it is being read: every value is checked at the door, every field that was used is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from loadmaster.errors import BadFileError
from loadmaster.models.harmless import HARMLESS

COUNT_LIMIT = 2**31 - 1
"""Largest width, vocabulary or table a config may name: torch indexes with int64, published models stay below 2^28."""
LAYER_LIMIT = 10_000
"""Most layers a config may name; the deepest published language model has 126 (Llama-3.1-405B)."""

HEAD_LIMIT = 65_536
"""Most attention heads; published models have at most 128."""

_MISSING: Any = object()


class Config:
    """A JSON object of a config, or of one nested in it. Wrong values raise BadFileError, missing ones too unless a
    default is given; ``warnings`` and ``assumed`` are shared with the configs nested in it."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        path: str,
        *,
        where: str = "",
        defaults: Mapping[str, Any] | None = None,
        parent: Config | None = None,
    ) -> None:
        self.fields, self.path, self.where = fields, path, where
        self.defaults = defaults or {}
        self.warnings: list[str] = parent.warnings if parent else []
        self.assumed: list[str] = parent.assumed if parent else []
        self._used: set[str] = set()

    @property
    def model_type(self) -> str:
        """The field ``model_type``; a missing one is a BadFileError."""
        return self.text("model_type")

    def fault(self, name: str, expected: str) -> BadFileError:
        """The error for a field that is there with an unusable value."""
        return BadFileError(
            self.path, f"{self.where}{name} is {_short(self.fields.get(name))}; expected {expected}"
        )

    def has(self, name: str) -> bool:
        """Whether the field is there and not null; it then counts as used."""
        self._used.add(name)
        return self.fields.get(name) is not None

    def value(self, *names: str, default: Any = _MISSING) -> Any:
        """The first of these fields that is there and not null; else the library's default, else ``default``."""
        self._used.update(names)
        for name in names:
            found = self.fields.get(name)
            if found is not None:
                return found
        for name in names:
            if name in self.defaults and name not in self.fields:
                note = f"{self.where}{name} = {self.defaults[name]} (transformers' default; the config leaves it out)"
                if note not in self.assumed:
                    self.assumed.append(note)
                return self.defaults[name]
        if default is _MISSING:
            raise BadFileError(
                self.path, f"the config has no {self.where}{names[0]}, which its model_type needs"
            )
        return default

    def _name(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if self.fields.get(name) is not None), names[0])

    def count(self, *names: str, default: Any = _MISSING, most: int = COUNT_LIMIT, least: int = 1) -> int:
        """A whole number of at least one, under the first of these names that is there."""
        found = self.value(*names, default=default)
        if type(found) is not int or not least <= found <= most:
            raise self.fault(self._name(names), f"a whole number from {least} to {most}")
        return found

    def maybe(self, *names: str, most: int = COUNT_LIMIT, least: int = 1) -> int | None:
        """As ``count``, but None where the field is missing or null."""
        found = self.value(*names, default=None)
        return None if found is None else self.count(*names, most=most, least=least)

    def layers(self, *names: str, default: Any = _MISSING) -> int:
        """A number of layers, within LAYER_LIMIT."""
        return self.count(*names, default=default, most=LAYER_LIMIT)

    def flag(self, *names: str, default: Any = _MISSING) -> bool:
        """A field that is true or false."""
        found = self.value(*names, default=default)
        if not isinstance(found, bool):
            raise self.fault(self._name(names), "true or false")
        return found

    def text(self, *names: str, default: Any = _MISSING) -> str:
        """A field that is a short text."""
        found = self.value(*names, default=default)
        if not isinstance(found, str) or not 0 < len(found) <= 200:
            raise self.fault(self._name(names), "a short text")
        return found

    def number(self, *names: str, default: Any = _MISSING) -> float:
        """A finite number above zero."""
        found = self.value(*names, default=default)
        if (
            isinstance(found, bool)
            or not isinstance(found, (int, float))
            or not 0 < found < 2**63
            or math.isnan(found)
        ):
            raise self.fault(self._name(names), "a number above zero")
        return float(found)

    def chance(self, *names: str, default: float = 0.0) -> float:
        """A probability: a number from 0 up to, not including, 1; a missing or null field is the default."""
        found = self.value(*names, default=default)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < 1:
            raise self.fault(self._name(names), "a number from 0 up to 1")
        return float(found)

    def counts(
        self, name: str, default: Any = _MISSING, *, least: int = 0, length: int | None = None
    ) -> tuple[int, ...]:
        """A list of whole numbers, of a given length if one is given."""
        found = self.value(name, default=default)
        good = isinstance(found, (list, tuple)) and len(found) <= LAYER_LIMIT
        if not good or not all(type(item) is int and least <= item <= COUNT_LIMIT for item in found):
            raise self.fault(name, f"a list of whole numbers from {least}")
        if length is not None and len(found) != length:
            raise self.fault(name, f"a list of {length} numbers, one a layer")
        return tuple(found)

    def texts(
        self, name: str, *, length: int | None = None, choices: tuple[str, ...] = ()
    ) -> tuple[str, ...] | None:
        """A list of short texts, each one of ``choices`` where these are given; None where it is missing."""
        found = self.value(name, default=None)
        if found is None:
            return None
        good = (
            isinstance(found, (list, tuple))
            and len(found) <= LAYER_LIMIT
            and all(isinstance(x, str) for x in found)
        )
        if not good or (choices and not set(found) <= set(choices)):
            raise self.fault(name, f"a list of {', '.join(choices) or 'texts'}")
        if length is not None and len(found) != length:
            raise self.fault(name, f"a list of {length} texts, one a layer")
        return tuple(found)

    def sub(self, *names: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """A nested config; ``defaults`` are what the library fills in when a nested config leaves a field out."""
        found = self.value(*names)
        name = self._name(names)
        if not isinstance(found, Mapping):
            raise self.fault(name, "an object")
        return Config(found, self.path, where=f"{self.where}{name}.", defaults=defaults, parent=self)

    def ignore(self, *names: str) -> None:
        """Count fields as understood though they change nothing here."""
        self._used.update(names)

    def unknown(self) -> list[str]:
        """A sentence for each field that nobody asked for and that could change a shape."""
        sentences = []
        for name, value in self.fields.items():
            if name in self._used or name in HARMLESS or name.startswith("_") or name.endswith("_token_id"):
                continue
            if name.endswith("_config") and isinstance(value, Mapping) and value:
                sentences.append(f"config part {self.where}{name} is not known to this family; not used")
            elif isinstance(value, (bool, int, float)) or (
                isinstance(value, list) and value and _numeric(value)
            ):
                sentences.append(
                    f"config field {self.where}{name} = {_short(value)} is not known to this family; not used"
                )
        return sentences

    def report_unknown(self) -> None:
        """Add the sentences of ``unknown`` to the warnings, at most twenty."""
        self.warnings.extend(self.unknown()[:20])


def _numeric(values: list[Any]) -> bool:
    return all(isinstance(value, (bool, int, float)) for value in values[:LAYER_LIMIT])


def _short(value: object) -> str:
    # A hostile integer is never printed in full: int → str is quadratic and capped by Python.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(value[:60])
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} values"
    if isinstance(value, Mapping):
        return "an object"
    return repr(value)
