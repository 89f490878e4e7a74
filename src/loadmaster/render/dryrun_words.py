"""What a dry run found, in sentences: the headline, where memory runs out, what was left out. For every view."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.dryrun.result import DryRun, Moment, OutOfMemory
from loadmaster.render.bar import CACHED, Piece
from loadmaster.render.sizes import Scale, apart, scale_of

OUTSIDE = "outside any module"
STEPLESS = ("load", "save")


class Column(NamedTuple):
    """One stretch of the run: consecutive moments of one phase of one step."""

    step: int
    phase: str
    moments: tuple[Moment, ...]


def scale_for(run: DryRun) -> Scale:
    """The unit of a run's sizes: what it takes decides, or a small program on a large card would be a column of <0.1."""
    return scale_of(run.peak_reserved_bytes or run.capacity_bytes or 0)


def step_words(run: DryRun, step: int) -> str:
    """People count steps from 1; a program that counts otherwise is counted so."""
    first = min((peak.step for peak in run.phases if peak.phase not in STEPLESS), default=0)
    return f"step {max(step - first, 0) + 1:,}"


def place(run: DryRun, step: int, phase: str) -> str:
    """``step 1, optimizer step``; loading belongs to no step, nor does anything where there is only one."""
    steps = {peak.step for peak in run.phases if peak.phase not in STEPLESS}
    return phase if phase in STEPLESS or len(steps) < 2 else f"{step_words(run, step)}, {phase}"


def title(run: DryRun) -> str:
    """What was run on what."""
    where = f", on {run.card.name}" if run.capacity_bytes is not None else ", on a simulated GPU"
    return f"{run.name}: {run.program}{where}"


def peak_moment(run: DryRun) -> Moment | None:
    """The highest moment of the timeline."""
    return max(run.timeline, key=lambda moment: moment.allocated_bytes, default=None)


def pieces(run: DryRun) -> list[Piece]:
    """What is allocated at the peak, by what it is, and what PyTorch keeps cached beside it; sums exactly."""
    found = [Piece(share.name, share.size_bytes) for share in run.categories]
    moment = peak_moment(run)
    kept = moment.reserved_bytes - run.peak_allocated_bytes if moment is not None else 0
    return [*found, Piece(CACHED, kept, kept=True)] if kept > 0 else found


def headline(run: DryRun) -> tuple[str, str, str]:
    """The verdict as a mark, a style and a sentence."""
    at = f"at {place(run, run.peak_step, run.peak_phase)}"
    by = f" ({_by(run.peak_op, run.peak_module)})" if run.peak_op else ""
    peak = f"{apart(run.peak_allocated_bytes)} allocated {at}{by}"
    if run.oom is not None:
        words = _out_of_memory(run, run.oom)
        if run.oom.handled:
            return "!", "bold,yellow", f"{words[:-1]}. The program handles that and goes on."
        return "✗", "bold,red", words
    if run.capacity_bytes is None:
        return (
            "?",
            "bold",
            f"Takes {peak}. Name a card with --gpu or a size with --vram to see whether it fits.",
        )
    room = run.capacity_bytes - run.peak_allocated_bytes
    leaves = f"the {run.card.name} leaves {apart(run.capacity_bytes)} to a job; {apart(room)} stay free"
    if run.peak_reserved_bytes > run.capacity_bytes:
        leaves += ", after PyTorch gave back what it had cached"
    return "✓", "bold,green", f"Fits: {peak}, {leaves}."


def _by(op: str, module: str) -> str:
    return f"{op} in {module}" if module else op


def _out_of_memory(run: DryRun, oom: OutOfMemory) -> str:
    at = place(run, oom.step, oom.phase)
    asks = f"{_by(oom.op, oom.module)} asks for {apart(oom.requested_bytes)}"
    leaves = f"the {run.card.name} leaves {apart(oom.capacity_bytes)} to a job"
    return f"Runs out of memory at {at}: {asks} while {apart(oom.allocated_bytes)} are allocated; {leaves}."


def fragmentation(run: DryRun) -> list[str]:
    """What is cached where memory runs out, and why that doesn't help."""
    oom = run.oom
    if oom is None:
        return []
    cached = oom.reserved_bytes - oom.allocated_bytes
    lines = []
    if oom.shape:
        lines.append(f"It is for a tensor of {oom.shape}.")
    if cached > 0:
        words = f"PyTorch holds {apart(cached)} more that no tensor uses, the largest piece {apart(oom.largest_free_bytes)}"
        if oom.inactive_split_bytes:
            words += (
                f"; {apart(oom.inactive_split_bytes)} of it lie beside tensors in use and can't be given back"
            )
        lines.append(f"{words}.")
    if (
        oom.requested_bytes <= oom.capacity_bytes - oom.allocated_bytes
        and run.peak_allocated_bytes <= oom.capacity_bytes
    ):
        free = oom.capacity_bytes - oom.allocated_bytes
        words = f"{apart(free)} are free in all, but not in one piece: fragmentation"
        lines.append(f"{words}. --try-alloc-conf shows whether a setting helps.")
    if run.peak_allocated_bytes > oom.capacity_bytes:
        at = place(run, run.peak_step, run.peak_phase)
        need = f"Without a limit it takes {apart(run.peak_allocated_bytes)} allocated at {at}"
        lines.append(f"{need}: {apart(run.peak_allocated_bytes - oom.capacity_bytes)} are missing.")
    return lines


def columns(run: DryRun) -> list[Column]:
    """The timeline by phase and step, in the program's order; what belongs to no listed phase goes to the one before it."""
    listed = {(peak.step, peak.phase) for peak in run.phases}
    found: list[tuple[int, str, list[Moment]]] = []
    for moment in run.timeline:
        key = (moment.step, moment.phase)
        if found and (key not in listed or found[-1][:2] == key):
            found[-1][2].append(moment)
        else:
            found.append((*key, [moment]))
    return [Column(step, phase, tuple(moments)) for step, phase, moments in found]


def versions(run: DryRun) -> str:
    """``torch 2.13.0, transformers 5.24.0; 36,120 operators in 4.1 s``."""
    libraries = ", ".join(f"{name} {version}" for name, version in run.versions)
    conf = f"; allocator: {run.conf}" if run.conf else ""
    return f"{libraries}{conf}; {run.operators:,} operators of {run.steps:,} steps simulated in {run.run_s:.1f} s"
