"""What is asked of a run when it is over: does it fit, which settings help, a snapshot. Needs its trace; no torch here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.capacity import find_oom, try_settings
from loadmaster.dryrun.events import Trace
from loadmaster.dryrun.request import Request
from loadmaster.dryrun.result import DryRun
from loadmaster.records import replace

Kept = list[tuple[DryRun, Trace]]

_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)


def keep(record: DryRun, trace: Trace) -> None:
    """Called with every record that is made of a trace."""
    kept = _kept.get()
    if kept is not None:
        kept.append((record, trace))


@contextmanager
def keeping() -> Iterator[Kept]:
    """Inside, every record is kept with its trace."""
    kept: Kept = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def trace_of(record: DryRun, kept: Kept) -> Trace | None:
    """The trace that a record was made of; the record may have been changed since in other fields than its timeline."""
    return next((trace for each, trace in reversed(kept) if each.timeline is record.timeline), None)


def finish(record: DryRun, trace: Trace | None, request: Request) -> DryRun:
    """The record with what was asked beside the run itself; writes the snapshot. Raises BadFileError where it can't."""
    if trace is None:
        return record
    capacity = request.capacity_bytes
    record = replace(record, capacity_bytes=capacity)
    if capacity is not None and record.oom is None and not record.card.limited:
        record = replace(record, oom=find_oom(trace, parse_alloc_conf(request.conf), capacity))
    if request.try_confs:
        record = replace(record, settings=try_settings(trace, request.conf, request.try_confs, capacity))
    if request.snapshot is not None:
        from loadmaster.dryrun.snapshot_of_trace import write

        write(trace, request.conf, capacity, request.snapshot)
    return record
