"""The command line that asks for a plan of a job."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.jobs.job import Job
from loadmaster.jobs.words import words
from loadmaster.plan import Plan
from loadmaster.render.terminal import cells


def command(plan: Plan, job: Job) -> tuple[str, ...] | None:
    """The words of ``loadmaster plan ...`` for another job on the plan's model and card; None where no words ask for
    it."""
    said = words(job)
    if said is None or not plan.asked:
        return None
    options: list[str] = []
    for field, value in said.items():
        option = f"--{field.replace('_', '-')}"
        options += [option] if value is True else [option, str(value)]
    return ("loadmaster", "plan", *plan.asked, *options)


def command_line(asked: Sequence[str]) -> str:
    """The words as a shell reads them."""
    import shlex

    return shlex.join(asked)


def command_lines(asked: Sequence[str], width: int, indent: str = "  ") -> list[str]:
    """The same on lines of ``width`` columns, broken before options with a backslash, so that it can be pasted."""
    import shlex

    pieces: list[str] = []
    for word in asked:
        quoted = shlex.quote(word)
        if pieces and not word.startswith("--") and word not in asked[:2]:
            pieces[-1] += f" {quoted}"
        elif word == "plan":
            pieces[-1] += " plan"
        else:
            pieces.append(quoted)
    lines, line = [], indent
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        if line.strip() and cells(line) + 1 + cells(piece) + (0 if last else 2) > width:
            lines.append(f"{line} \\")
            line = f"{indent}  "
        line += piece if not line.strip() else f" {piece}"
    return [*lines, line]
