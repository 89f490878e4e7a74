"""``--rule-of-thumb`` and ``--compare-rules``: what others say beside the ledger, and by what they are off."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.plan.rules_of_thumb import Rule
from loadmaster.render.sizes import apart
from loadmaster.render.terminal import Cell, Look, table, wrap

FEW = 5


def rules(found: Sequence[Rule], look: Look) -> list[str]:
    """Each rule in a line with its formula, then the difference in words."""
    lines = [look.paint("Rules of thumb", "bold")]
    for rule in found:
        text = f"{rule.name}: {rule.formula} = {_amount(rule.says, rule.unit)}; the ledger says {_amount(rule.ledger, rule.unit)}"
        lines += wrap(text, look.width, first="  ", indent="    ")
        for words in (difference(rule), rule.remark):
            if words:
                lines += [
                    look.paint(line, "dim") for line in wrap(words, look.width, first="    ", indent="    ")
                ]
    return lines


def comparison(found: Sequence[Rule], look: Look) -> list[str]:
    """A table of what each formula says, then each with its formula, source and difference."""
    rows: list[list[Cell]] = [[("What common formulas say", "bold"), ("", ""), ("of ours", "dim")]]
    for rule in found:
        share = f"{100 * rule.says // max(rule.ledger, 1)} %"
        rows.append([(f"  {rule.name}", ""), (_amount(rule.says, rule.unit), "bold"), (share, "")])
    if found:
        rows.append(
            [("  this ledger, allocated", ""), (_amount(found[0].ledger, found[0].unit), "bold"), ("", "")]
        )
    lines = [*table(rows, look, right=(1, 2), indent=""), ""]
    for rule in found:
        lines += wrap(f"{rule.name} = {rule.formula}", look.width, first="  ", indent="    ")
        for words in (difference(rule), rule.remark, rule.source):
            if words:
                wrapped = wrap(words, look.width, first="    ", indent="    ")
                lines += [look.paint(line, "dim") for line in wrapped]
    return lines


def difference(rule: Rule) -> str:
    """``leaves out activations 34.3 GiB, logits 7.0 GiB; counts 28.1 GiB too much for optimizer states``."""
    least = max(rule.says, rule.ledger) // 100
    out = [d for d in rule.differences if d.bytes > least]
    over = [d for d in rule.differences if -d.bytes > least]
    parts = []
    if out:
        parts.append("leaves out " + ", ".join(f"{d.component} {apart(d.bytes)}" for d in out[:FEW]))
    if over:
        parts.append("counts too much: " + ", ".join(f"{d.component} {apart(-d.bytes)}" for d in over[:FEW]))
    return "; ".join(parts)


def _amount(value: int, unit: str) -> str:
    return apart(value) if unit == "bytes" else f"{value:,} {unit}"
