"""What each change saves, and the first combination that fits, with the command that plans it."""

from __future__ import annotations

from loadmaster.plan import Plan
from loadmaster.render.command import command
from loadmaster.render.sizes import Scale, apart
from loadmaster.render.terminal import Cell, Look, table, wrap

_RESULTS = {
    "identical": "same results",
    "close": "same results up to rounding",
    "different": "trains something else",
}
_RESULTS_INFER = {**_RESULTS, "different": "results change"}


def ladder(plan: Plan, look: Look, scale: Scale) -> list[str]:
    """One line for each change alone, then the combination."""
    lines: list[str] = []
    if plan.ladder:
        lines += [_heading("One change at a time", look)]
        lines += table(_rows(plan, scale), look, right=(1, 2))
    return lines + _combination(plan, look)


def _heading(text: str, look: Look) -> str:
    return look.paint(text, "bold")


def effect(numerics: str, speed: str, training: bool) -> str:
    """What a change does to results and speed, in words."""
    results = (_RESULTS if training else _RESULTS_INFER)[numerics]
    return f"{results}; {speed}"


def _rows(plan: Plan, scale: Scale) -> list[list[Cell]]:
    rows = [[("", ""), ("saves", "dim"), ("peak", "dim"), (f"in {scale.unit} allocated", "dim")]]
    for rung in plan.ladder:
        rows.append(
            [
                ("✓", "bold,green") if rung.fits else (" ", ""),
                (scale.number(rung.saved_bytes), ""),
                (scale.number(rung.allocated_bytes), "green" if rung.fits else ""),
                (f"{rung.text}: {effect(rung.numerics, rung.speed, plan.job.training)}", ""),
            ]
        )
    return rows


def _combination(plan: Plan, look: Look) -> list[str]:
    found = plan.fitting
    if found is None:
        text = "No combination of these changes fits this card: it takes a larger one, or several."
        return [look.paint(line, "bold") for line in wrap(text, look.width)]
    peak = found.ledger.peak
    left = plan.usable_bytes.likely - peak.reserved.likely if plan.usable_bytes else 0
    room = f"{apart(left)} to spare" if left >= 0 else "only just, with little cached"
    word = "Fits with" if found.verdict == "fits" else "Fits tightly with"
    text = (
        f"{word} {' + '.join(found.texts)}: {apart(peak.allocated.likely)} allocated at {peak.phase}, {room}."
    )
    lines = [look.paint(line, "bold,green") for line in wrap(text, look.width)]
    asked = command(plan, found.job)
    return lines + ([] if asked is None else [f"  {asked}"])
