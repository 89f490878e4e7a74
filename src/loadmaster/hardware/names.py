"""How names of cards are spelled: folding a spelling to a key, and the index from keys to catalogue rows.

A key has no case, blanks, dashes or vendor words. Every row is found under its own name, under its aliases, and under
the shorter forms that people use: without the product line (``4090``), without the form factor (``a100-80gb``), without
the memory size where the name has it (``rtx 3060``) and with it where it has not (``rtx 4090 24gb``).
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import NamedTuple

from loadmaster.hardware.catalogue import table

_NOISE = {
    "nvidia", "geforce", "amd", "intel", "google", "aws", "huawei", "corporation", "corp", "inc",
    "graphics", "gpu", "generation", "edition", "accelerator", "with", "design", "r", "tm", "oam", "chip", "cloud",
}  # fmt: skip
_LINES = {"tesla", "quadro", "instinct", "radeon", "apple", "jetson", "aws", "rtx", "gtx", "rx", "arc"}
_FORMS = {"pcie", "sxm", "sxm2", "sxm4", "sxm5", "sxm6", "nvl"}
_QUALIFIERS = {"blackwell", "ada", "workstation", "server"}
_SIZE = re.compile(r"\d+gb")
_SPACED_SIZE = re.compile(r"(\d+)\s*(?:gib|gb|g)\b")
_WORD = re.compile(r"[a-z0-9+.]+")


class Keys(NamedTuple):
    """Row names by key: own names, aliases, and the shorter forms."""

    names: dict[str, str]
    aliases: dict[str, tuple[str, ...]]
    forms: dict[str, tuple[str, ...]]


def fold(text: str) -> str:
    """The key of a spelling: ``NVIDIA GeForce RTX 4090`` and ``rtx-4090`` give ``rtx4090``."""
    return "".join(_words(text))


def _words(text: str) -> list[str]:
    lowered = (
        text.lower().replace("max-q", "maxq").replace("geforce", " ").replace("(r)", " ").replace("(tm)", " ")
    )
    if "g" in lowered:
        lowered = _SPACED_SIZE.sub(r" \1gb ", lowered)
    return [word for word in _WORD.findall(lowered) if word not in _NOISE]


def with_words(text: str) -> list[str]:
    """The rows whose name has every word of a spelling, in whatever order (``orin agx 64``), the shortest first."""
    asked = {word.removesuffix("gb") for word in _words(text)}
    found = []
    for row in table("gpus.csv"):
        there = {word.removesuffix("gb") for word in _words(row["name"])}
        if asked and asked <= there:
            found.append((len(there - asked), row["name"]))
    return [name for _, name in sorted(found, key=lambda row: row[0])]


@cache
def keys() -> Keys:
    """The index over the whole catalogue, made once."""
    names: dict[str, str] = {}
    aliases: dict[str, dict[str, None]] = {}
    forms: dict[str, dict[str, None]] = {}
    for row in table("gpus.csv"):
        name = row["name"]
        names[fold(name)] = name
        for alias in row["aliases"].split(";"):
            if key := fold(alias):
                aliases.setdefault(key, {})[name] = None
        for spelling in (name, *row["aliases"].split(";")[:1]):
            for key in _short_forms(spelling, row["memory_gb_marketed"]):
                forms.setdefault(key, {})[name] = None
    return Keys(
        names,
        {key: tuple(rows) for key, rows in aliases.items()},
        {key: tuple(rows) for key, rows in forms.items()},
    )


def _short_forms(name: str, memory_gb: str) -> set[str]:
    """The shorter forms of a name: each part that may be missing, present and missing."""
    words = _words(name)
    size = f"{float(memory_gb):g}gb" if memory_gb else ""
    lines = 0
    while lines < len(words) - 1 and words[lines] in _LINES:
        lines += 1
    starts = ["".join(words[skip:lines]) for skip in range(lines + 1)]
    choices: list[list[str]] = [starts]
    sized = False
    for word in words[lines:]:
        if word in _FORMS:
            choices.append([word, word.rstrip("0123456789"), ""])
        elif word in _QUALIFIERS:
            choices.append([word, ""])
        elif _SIZE.fullmatch(word):
            choices.append([word, ""])
            sized = True
        else:
            choices.append([word])
    if not sized:
        choices.append(["", size])
    return {key for parts in product(*choices) if len(key := "".join(parts)) > 1}
