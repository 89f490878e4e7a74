"""The bundled catalogue: one config file for each model, looked up by name without reading the others."""

from __future__ import annotations

import re

from loadmaster import data
from loadmaster.errors import AmbiguousNameError, UnknownNameError
from loadmaster.models.readers import config_json
from loadmaster.models.spec import ModelSpec

FOLDER = data.path("models")
_ENDING = re.compile(r"(-hf|-v\d+(\.\d+)*|-base|-\d{4})$")


def names() -> list[str]:
    """Every model in the catalogue as ``org/name``."""
    return sorted(path.stem.replace("__", "/", 1) for path in FOLDER.glob("*.json"))


def find(name: str) -> str | None:
    """The catalogue's spelling of a name: letter case is folded and the organisation may be left out.

    Raises AmbiguousNameError when several organisations have a model of that name; None when none has.
    """
    wanted = name.strip().lower()
    known = {full.lower(): full for full in names()}
    if wanted in known:
        return known[wanted]
    short = [full for folded, full in known.items() if folded.partition("/")[2] == wanted]
    # Then with the organisation, or not, but without endings that people leave out.
    bare = [
        full
        for folded, full in known.items()
        if wanted in (_ENDING.sub("", part) for part in (folded, folded.partition("/")[2]))
    ]
    found = short or bare
    if len(found) > 1:
        raise AmbiguousNameError("model", name, found)
    return found[0] if found else None


def near(name: str, count: int = 3) -> list[str]:
    """The names most like this one, best first."""
    import difflib

    known = {full.lower(): full for full in names()}
    short = {full.lower().partition("/")[2]: full for full in names()}
    wanted = name.lower()[:200]
    close = difflib.get_close_matches(wanted, known, n=count, cutoff=0.6)
    tail = difflib.get_close_matches(wanted.rpartition("/")[2], short, n=count, cutoff=0.5)
    return list(dict.fromkeys([*(short[key] for key in tail), *(known[key] for key in close)]))[:count]


def read(name: str) -> ModelSpec:
    """The ModelSpec of a catalogue model; raises UnknownNameError with near names."""
    found = find(name)
    if found is None:
        hint = "loadmaster models list shows the catalogue; org/name is looked up on the Hugging Face hub"
        raise UnknownNameError("model", name[:120], near(name), hint=hint)
    path = FOLDER / f"{found.replace('/', '__', 1)}.json"
    fields = config_json.parse(config_json.load_text(path, config_json.CONFIG_LIMIT_BYTES), found)
    return config_json.from_fields(fields, f"catalogue: {found}")
