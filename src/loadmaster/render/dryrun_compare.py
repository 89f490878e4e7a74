"""Both predictions side by side: the plan's closed form and the dry run, by phase and by component."""

from __future__ import annotations

from loadmaster.dryrun.result import DryRun
from loadmaster.memory.ledger import Ledger
from loadmaster.plan import Plan
from loadmaster.render.sizes import Scale
from loadmaster.render.terminal import Cell, Look, table, wrap

GROUPS = {
    "weights": "weights, adapters, buffers", "adapters": "weights, adapters, buffers",
    "buffers": "weights, adapters, buffers", "gathered parameters": "gathered parameters",
    "activations": "activations, logits, temporaries", "logits": "activations, logits, temporaries",
    "temporaries": "activations, logits, temporaries", "weight copies": "activations, logits, temporaries",
}  # fmt: skip
"""What one of the two tells apart and the other doesn't: a plan names logits, a dry run knows adapters as parameters."""


def comparison(run: DryRun, plan: Plan, look: Look, scale: Scale) -> list[str]:
    """A table: peak, each phase, and what it consists of there."""
    head: list[Cell] = [
        (f"Plan and dry run, {scale.unit} allocated", "bold"), ("plan", "dim"), ("dry run", "dim"), ("plan is off by", "dim"),
    ]  # fmt: skip
    ours, theirs = run.ledger, plan.ledger
    least = max(run.peak_allocated_bytes // 1000, 1)
    rows = [head, _row("  peak", theirs.peak.allocated.likely, run.peak_allocated_bytes, scale, bold=True)]
    rows.append(_row("  reserved", theirs.peak.reserved.likely, run.peak_reserved_bytes, scale))
    for phase in phases(theirs, ours):
        rows.append(_row(f"  {phase}", total(theirs, phase), total(ours, phase), scale))
        plans, runs = components(theirs, phase), components(ours, phase)
        if plans is None or runs is None:
            continue
        for name in sorted(
            {*plans, *runs}, key=lambda name: (-max(plans.get(name, 0), runs.get(name, 0)), name)
        ):
            if max(plans.get(name, 0), runs.get(name, 0)) >= least:
                rows.append(_row(f"    {name}", plans.get(name, 0), runs.get(name, 0), scale, faint=True))
    words = (
        "plan: worked out from shapes alone, in milliseconds, its likely value; dry run: the model's own code, block by block. "
        "Where they differ, the dry run has seen what really runs."
    )
    told = wrap(words, look.width, first="  ", indent="  ")
    return [*table(rows, look, right=(1, 2, 3), indent=""), *(look.paint(line, "dim") for line in told)]


def phases(one: Ledger, other: Ledger) -> list[str]:
    """Phases of either, in the order of the one that has more."""
    longer, shorter = sorted((one, other), key=lambda ledger: -len(ledger.phases))
    return list(dict.fromkeys([*(p.phase for p in longer.phases), *(p.phase for p in shorter.phases)]))


def total(ledger: Ledger, phase: str) -> int | None:
    """Allocated bytes of a phase; None where the ledger hasn't got it."""
    return next((p.allocated.likely for p in ledger.phases if p.phase == phase), None)


def components(ledger: Ledger, phase: str) -> dict[str, int] | None:
    """Bytes by what both can tell apart; None where the ledger hasn't got the phase."""
    if total(ledger, phase) is None:
        return None
    found: dict[str, int] = {}
    for entry in ledger.at(phase):
        name = GROUPS.get(entry.component, entry.component)
        found[name] = found.get(name, 0) + entry.bytes.likely
    return found


def _row(
    name: str, plan: int | None, run: int | None, scale: Scale, *, bold: bool = False, faint: bool = False
) -> list[Cell]:
    style = "bold" if bold else "dim" if faint else ""
    sizes = [("–" if size is None else scale.number(size), style) for size in (plan, run)]
    return [(name, style), *sizes, (_difference(plan, run, scale), style)]


def _difference(plan: int | None, run: int | None, scale: Scale) -> str:
    """By what the plan is off: ``-0.3 (-1.2 %)``."""
    if plan is None or run is None:
        return ""
    if plan == run:
        return "equal"
    off = plan - run
    percent = f" ({100 * off / run:+.1f} %)" if run else ""
    sign = "+" if off > 0 else "-" if off < 0 else ""
    return f"{sign}{scale.number(abs(off))}{percent}"
