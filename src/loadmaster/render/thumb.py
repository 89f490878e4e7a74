"""``--rule-of-thumb``: what popular rules say beside the ledger, and by what they are off."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.plan.rules_of_thumb import Rule
from loadmaster.render.sizes import apart
from loadmaster.render.terminal import Look, wrap

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
