"""The bundled catalogue: one config file for each model, looked up by name without reading the others."""

from __future__ import annotations

import re

from loadmaster import data
from loadmaster.errors import AmbiguousNameError, UnknownNameError
from loadmaster.models.readers import config_json
from loadmaster.models.spec import ModelSpec

FOLDER = data.path("models")
_WORD = re.compile(r"a\d+(?:\.\d+)?b(?![a-z])|\d+(?:\.\d+)?[bm](?![a-z])|\d+(?:\.\d+)?|[a-z]+")
_PARAMETERS = re.compile(r"\d+(\.\d+)?[bm]")
_CHAT = {"instruct", "chat", "it"}
_VARIANTS = {*_CHAT, "base", "hf", "v"}
"""Words that don't change a network's shapes."""
_LEAST_LIKENESS = 0.6
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
    """The names most like this one, best first: the same series, version and size go before what is merely spelt alike."""
    wanted = name.lower()[:200]
    scored = sorted((-_likeness(wanted, full.lower()), full) for full in names())
    return [full for score, full in scored[:count] if -score >= _LEAST_LIKENESS]


def hint(name: str, found: list[str]) -> str:
    """What helps where a variant is asked for and its base is there; empty otherwise."""
    lacking = found and _CHAT & set(_words(name.lower())) - set(_words(found[0].lower()))
    return "instruct and chat variants have the same shapes as their base model" if lacking else ""


def _words(name: str) -> list[str]:
    """``org/Llama-3.1-8B-Instruct`` → llama, 3.1, 8b, instruct."""
    return _WORD.findall(name.rpartition("/")[2])


def _likeness(wanted: str, full: str) -> float:
    """What two names share: series and version count most, then the size, then how alike they are spelt."""
    from difflib import SequenceMatcher

    asked, there = ([word for word in _words(name) if word not in _VARIANTS] for name in (wanted, full))
    score = SequenceMatcher(None, " ".join(asked), " ".join(there)).ratio()
    for place, word in enumerate(asked):
        if word in there:
            score += 1.5 if _PARAMETERS.fullmatch(word) else 2.0 if place == 0 or not word.isalpha() else 1.0
        elif word.isalpha() and len(word) > 2:
            close = max((SequenceMatcher(None, word, other).ratio() for other in there), default=0.0)
            score += close if close > 0.7 else 0.0
    score -= 0.3 * len(set(there) - set(asked))
    score += 0.1 * (_CHAT.isdisjoint(_words(wanted)) == _CHAT.isdisjoint(_words(full)))
    return score + (0.5 if "/" in wanted and wanted.partition("/")[0] == full.partition("/")[0] else 0.0)


def read(name: str) -> ModelSpec:
    """The ModelSpec of a catalogue model; raises UnknownNameError with near names."""
    found = find(name)
    if found is None:
        close = near(name)
        ways = "loadmaster models list shows the catalogue; org/name is looked up on the Hugging Face hub"
        same = hint(name, close)
        raise UnknownNameError("model", name[:120], close, hint=f"{same}; {ways}" if same else ways)
    path = FOLDER / f"{found.replace('/', '__', 1)}.json"
    fields = config_json.parse(config_json.load_text(path, config_json.CONFIG_LIMIT_BYTES), found)
    return config_json.from_fields(fields, f"catalogue: {found}")
