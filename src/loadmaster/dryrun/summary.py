"""From a session that has run to a DryRun."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version

from loadmaster.dryrun import finishing, report
from loadmaster.dryrun.events import Trace
from loadmaster.dryrun.result import Answer, DryRun
from loadmaster.dryrun.session import Session
from loadmaster.records import Interval

CONVOLUTIONS = {"convolution", "convolution_backward"}
CONVOLUTION_NOTE = (
    "cuDNN's workspace for convolutions isn't counted: how much it takes, and gives back, is in its choice of an algorithm on "
    "the card"
)
LIBRARIES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes")


def summarise(
    session: Session,
    *,
    name: str,
    program: str,
    started_s: float,
    context_bytes: Interval | None = None,
    skipped: tuple[tuple[str, int], ...] = (),
    notes: tuple[str, ...] = (),
) -> DryRun:
    """What a session found; ``started_s`` is time.perf_counter() of its beginning, ``context_bytes`` the CUDA context that
    nvidia-smi counts too."""
    trace, values = session.tracker.trace, session.values
    at = report.peak_index(trace)
    alive = list(trace.alive(at))
    event = trace.events[at] if trace.events else None
    top = trace.blocks[event] if event is not None and event >= 0 else None
    record = DryRun(
        name=name,
        program=program,
        card=session.card,
        conf=session.conf_text,
        versions=tuple((each, found) for each in LIBRARIES if (found := _version(each)) is not None),
        steps=session.watch.steps,
        operators=session.mode.operators,
        run_s=time.perf_counter() - started_s,
        peak_allocated_bytes=trace.allocated_bytes[at] if trace.events else 0,
        peak_reserved_bytes=max(trace.reserved_bytes, default=0),
        peak_step=top.step if top else 0,
        peak_phase=top.phase if top else "load",
        peak_module=top.module if top else "",
        peak_op=top.op if top else "",
        categories=report.categories(trace, alive),
        modules=report.modules(alive),
        tensors=report.tensors(trace, alive),
        phases=report.phase_peaks(trace),
        timeline=report.timeline(trace),
        ledger=report.ledger(trace, context_bytes),
        oom=session.tracker.oom,
        answers=tuple(
            Answer(question=question, answer=answer, asker=asker, count=count)
            for (question, answer, asker), count in values.stated.most_common()
        ),
        skipped=skipped,
        attention=tuple(sorted(session.choose.chosen.items())),
        notes=(*session.notes, *_convolutions(trace), *notes),
    )
    finishing.keep(record, trace)
    return record


def _convolutions(trace: Trace) -> tuple[str, ...]:
    """cuDNN takes a workspace of PyTorch's allocator (Conv_v8.cpp run_conv_plan) whose size only its choice of a plan says."""
    return (CONVOLUTION_NOTE,) if any(block.op in CONVOLUTIONS for block in trace.blocks) else ()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
