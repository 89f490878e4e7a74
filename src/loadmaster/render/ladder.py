"""What each change saves, and the first combination that fits, with the command that plans it."""

from __future__ import annotations

from loadmaster.plan import Plan, Verdict
from loadmaster.render.command import command, command_lines
from loadmaster.render.sizes import Scale, apart
from loadmaster.render.terminal import Cell, Look, table, wrap

_RESULTS = {"identical": "same results", "close": "same results up to rounding", "different": "other results"}
_ALONE: dict[Verdict, Cell] = {
    "fits": ("✓ fits", "bold,green"),
    "tight": ("! tight", "yellow"),
    "does_not_fit": ("", ""),
}


def ladder(plan: Plan, look: Look, scale: Scale) -> list[list[str]]:
    """Two sections: a line for each change alone, and the combination."""
    singles: list[str] = []
    if plan.ladder:
        title = f"One change at a time, {scale.unit} allocated"
        singles = [look.paint(title, "bold"), *table(_rows(plan, scale), look, right=(0, 1))]
    return [singles, _combination(plan, look)]


def effect(numerics: str, speed: str) -> str:
    """What a change does to results and speed, in words."""
    return f"{_RESULTS[numerics]}; {speed}"


def _rows(plan: Plan, scale: Scale) -> list[list[Cell]]:
    rows: list[list[Cell]] = [[("saves", "dim"), ("peak", "dim"), ("alone", "dim"), ("", "")]]
    for rung in plan.ladder:
        words = f"{rung.text}: {effect(rung.numerics, rung.speed)}"
        rows.append(
            [
                (scale.number(rung.saved_bytes), ""),
                (scale.number(rung.allocated_bytes), ""),
                _ALONE[rung.verdict],
                (words, ""),
            ]
        )
    return rows


def _combination(plan: Plan, look: Look) -> list[str]:
    found = plan.fitting
    if found is None:
        text = "No change or combination here makes it fit this card"
        if plan.least_bytes is not None:
            text += f": all of them together leave {apart(plan.least_bytes)} allocated"
        return [look.paint(line, "bold") for line in wrap(f"{text}.", look.width)]
    peak = found.ledger.peak
    left = plan.usable_bytes.likely - peak.allocated.likely if plan.usable_bytes else 0
    room = f"{apart(left)} stay free"
    word = "It fits with" if found.verdict == "fits" else "It fits tightly with"
    lines = [look.paint(line, "bold,green") for line in wrap(f"{word} {' + '.join(found.texts)}", look.width)]
    lines += wrap(
        f"{apart(peak.allocated.likely)} allocated at {peak.phase}, {room}",
        look.width,
        first="  ",
        indent="  ",
    )
    asked = command(plan, found.job)
    return lines if asked is None else lines + command_lines(asked, look.width)
