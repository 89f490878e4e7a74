"""What a dry run is asked for, and what comes back from the process that does it: the messages between the two. No torch here."""

from __future__ import annotations

from typing import Any, Literal

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.result import DryRun
from loadmaster.jobs.job import Job
from loadmaster.records import Interval, Record


class Request(Record, kw_only=True):
    """One dry run. ``kind``: a model by its config's ``fields``, a factory (``pkg.module:name``, or ``file.py:name``), or a
    script with its arguments. ``capacity_bytes`` is what the card leaves to PyTorch, None: there is no card to compare with."""

    kind: Literal["model", "factory", "script"]
    name: str
    fields: dict[str, Any] | None = None
    argv: tuple[str, ...] = ()
    job: Job | None = None
    card: Card = Card()
    capacity_bytes: int | None = None
    context_bytes: Interval | None = None
    conf: str = ""
    steps: int = 2
    try_confs: tuple[str, ...] = ()
    snapshot: str | None = None
    """Path of a memory snapshot to be written."""
    assume: tuple[str, ...] = ()
    layout: dict[str, Any] | None = None
    """Words of a layout over several devices."""


class Progress(Record, kw_only=True, tag="progress"):
    """What is being done; ``done`` of ``total`` steps, where they are counted."""

    text: str
    done: float | None = None
    total: int | None = None


class Finished(Record, kw_only=True, tag="finished"):
    """The run is over and this is what it found."""

    record: DryRun


class Failed(Record, kw_only=True, tag="failed"):
    """It could not be done: the sentence, a hint, the exit code."""

    message: str
    hint: str | None
    exit_code: int


Message = Progress | Finished | Failed
