"""A dry run's trace as a memory snapshot: every block with the operator, module, phase and step that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.events import Block, Trace
from loadmaster.dryrun.replaying import ALLOC_EVENT, EMPTY_CACHE_EVENT, FREE_EVENT
from loadmaster.dryrun.reports import Frames
from loadmaster.dryrun.snapshot_file import FramedEvent, snapshot_of, write_snapshot


def write(trace: Trace, conf: str, capacity_bytes: int | None, path: str | Path) -> None:
    """Write what PyTorch's memory viewer opens; raises BadFileError. Times are the places of events: nothing took time."""
    snapshot = snapshot_of(
        _framed(trace), parse_alloc_conf(conf), capacity_bytes, annotations=_annotations(trace)
    )
    write_snapshot(snapshot, path)


def _framed(trace: Trace) -> Iterator[FramedEvent]:
    known: dict[tuple[str, ...], Frames] = {}
    nowhere: Frames = []
    for at, event in enumerate(trace.events):
        if event is None:
            yield EMPTY_CACHE_EVENT, 0, 0, 0, at, nowhere
            continue
        block = trace.blocks[event if event >= 0 else ~event]
        kind = ALLOC_EVENT if event >= 0 else FREE_EVENT
        yield kind, block.number, block.requested_bytes, block.stream, at, _frames(trace, block, known)


def _frames(trace: Trace, block: Block, known: dict[tuple[str, ...], Frames]) -> Frames:
    """Innermost first, as a stack: operator and shape, the modules around it, the phase. One list for all of one stack."""
    key = (trace.kind(block), block.op, block.shape, block.module, block.phase, str(block.step))
    found = known.get(key)
    if found is None:
        kind, op, shape, module, phase, step = key
        parts = module.split(".") if module else []
        paths = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        told = [f"{op} {shape}".rstrip(), kind, *paths, f"{phase}, step {step}"]
        found = known[key] = [{"name": text, "filename": "", "line": 0} for text in told]
    return found


def _annotations(trace: Trace) -> list[dict[str, Any]]:
    """Phases as the viewer's annotations: where each begins and ends."""
    told: list[dict[str, Any]] = []
    ends = [*(mark.at for mark in trace.marks), len(trace.events)]
    for mark, end in zip(trace.marks, ends[1:], strict=True):
        if end > mark.at:
            name = f"{mark.phase}, step {mark.step}"
            told.append({"stage": "START", "name": name, "device": 0, "time_us": mark.at})
            told.append({"stage": "END", "name": name, "device": 0, "time_us": end})
    return told
