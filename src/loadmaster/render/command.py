"""The command line that asks for a plan of a job."""

from __future__ import annotations

import shlex

from loadmaster.jobs.job import Job
from loadmaster.jobs.words import words
from loadmaster.plan import Plan


def command(plan: Plan, job: Job) -> str | None:
    """``loadmaster plan ...`` for another job on the plan's model and card; None where no words ask for it."""
    said = words(job)
    if said is None or not plan.asked:
        return None
    options: list[str] = []
    for field, value in said.items():
        option = f"--{field.replace('_', '-')}"
        options += [option] if value is True else [option, str(value)]
    return shlex.join(["loadmaster", "plan", *plan.asked, *options])
