"""A whole set scored: every row predicted or explained, the score by confidence, the groups, the worst rows."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from loadmaster.calibrate import Outcome, Report, Score, Worst, scoring
from loadmaster.errors import AmbiguousNameError, LoadmasterError, UnknownNameError, UsageError
from loadmaster.hardware import Device, all_gpus, find_gpu, get_gpu, usable
from loadmaster.hardware.usable import context_memory
from loadmaster.memory import Entry, Ledger, predict
from loadmaster.memory.serving import budget
from loadmaster.models import read_model
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval, replace
from loadmaster.workflows.truth.mapping import CONVENTIONS, Question, Unmapped, question
from loadmaster.workflows.truth.rows import Row, read_rows

CLOSED_FORM, DRY_RUN = "plan", "dryrun"
ENGINES = (CLOSED_FORM, DRY_RUN)
WORST = 10
CONFIDENCES = ("high", "medium", "low")
DRIVERS = {
    "11.0": "450", "11.1": "455", "11.2": "460", "11.3": "465", "11.4": "470", "11.5": "495", "11.6": "510",
    "11.7": "515", "11.8": "520", "12.0": "525", "12.1": "530", "12.2": "535", "12.3": "545", "12.4": "550",
}  # fmt: skip
"""The driver branch that came with a CUDA toolkit (NVIDIA CUDA Toolkit release notes, table 3)."""


def default_set() -> Path:
    """The reduced set of a source checkout's tests; raises UsageError where there is none."""
    path = Path(__file__).resolve().parents[4] / "tests" / "data" / "truth" / "measured.jsonl"
    if not path.is_file():
        raise UsageError(
            "no set of measurements comes with an installed loadmaster; say which with --set PATH",
            hint="a set is a file of one JSON object a line, with its models' configs in configs/ beside it",
        )
    return path


def score_set(
    path: Path | None = None, configs: Path | None = None, group: str | None = None, engine: str = CLOSED_FORM
) -> Report:
    """Score the predictions for every row of a set; raises UsageError for a set that can't be read and for a group that
    it hasn't. ``engine`` is ``plan``, the closed form, or ``dryrun``, which runs each row's program op by op (seconds a row,
    needs the dryrun extra); the closed form's score on the same rows is then beside its own."""
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, hint=f"choices: {', '.join(ENGINES)}")
    path = path or default_set()
    found = read_rows(path)
    folder = configs or path.parent / "configs"
    rows = found.rows
    if group is not None:
        names = list(dict.fromkeys(row.group for row in rows))
        rows = tuple(row for row in rows if row.group == group)
        if not rows:
            raise UnknownNameError("group", group, hint=f"the set has {', '.join(names)}")
    answers = [_answer(row, folder) for row in rows]
    beside: list[Outcome] = []
    if engine == DRY_RUN:
        from loadmaster.workflows.truth.dryrun import ledgers

        beside = [outcome for outcome, _ in answers]
        found_ledgers = ledgers([(row, _asked(row, folder)) for row in rows], folder)
        answers = [_answer(row, folder, given) for row, given in zip(rows, found_ledgers, strict=True)]
        beside = [one for one, (outcome, _) in zip(beside, answers, strict=True) if outcome.predicted]
    outcomes = [outcome for outcome, _ in answers]
    ranked = sorted((a for a in answers if a[0].error is not None), key=lambda a: -abs(a[0].error or 0.0))[
        :WORST
    ]
    return Report(
        path=str(path),
        group=group,
        score=_by_confidence(outcomes),
        single_device=_by_confidence([o for o in outcomes if o.gpus == 1]),
        groups=scoring.group_scores(outcomes),
        rows=tuple(outcomes),
        worst=tuple(worst for _, worst in ranked if worst is not None),
        unknown_fields=found.unknown_fields,
        engine=engine,
        beside=_by_confidence(beside),
    )


def _asked(row: Row, folder: Path) -> Question | str:
    """The row's question to a dry run, or why there is none."""
    from loadmaster.workflows.truth.sharded import parallel_of, unsharded

    try:
        if parallel_of(row) is None:
            return question(row, _model(row, folder), _device(row))
        return question(unsharded(row), _model(row, folder), _device(row), sharded=True)
    except (Unmapped, LoadmasterError) as reason:
        return str(reason)


def _by_confidence(outcomes: list[Outcome]) -> dict[str, Score]:
    return {word: scoring.score([o for o in outcomes if o.confidence == word]) for word in CONFIDENCES}


def _answer(row: Row, folder: Path, given: Ledger | str | None = None) -> tuple[Outcome, Worst | None]:
    """One row scored; ``given`` is another engine's ledger, or why it has none."""
    base = Outcome(
        id=row.id,
        group=row.group,
        confidence=row.confidence,
        model=row.model,
        gpus=row.gpus,
        what=row.measured.what,
        convention=CONVENTIONS.get(row.measured.what),
        measured_bytes=row.measured.bytes,
    )
    try:
        device = _device(row)
        if isinstance(given, str):
            raise Unmapped(given)
        if row.config is None and row.measured.what == "nvidia-smi" and "context only" in (row.method or ""):
            return _compared(base, row, _context(device), "load", ()), None
        asked = question(row, _model(row, folder), device) if given is None else _asked(row, folder)
        if isinstance(asked, str):
            raise Unmapped(asked)
        if asked.pool_of_bytes is not None:
            return _compared(base, row, _pool(asked), "load", asked.assumed), None
        ledger = given or _ledger(asked)
        predicted, phase, entries = _figure(asked, ledger)
    except Unmapped as reason:
        return replace(base, reason=str(reason)), None
    except LoadmasterError as error:
        return replace(base, reason=str(error)), None
    outcome = _compared(base, row, predicted, phase, asked.assumed)
    return outcome, Worst(id=row.id, job=_said(asked), entries=entries)


def _compared(base: Outcome, row: Row, predicted: Interval, phase: str, assumed: tuple[str, ...]) -> Outcome:
    measured = row.measured.bytes
    wrong = between = None
    if base.convention in ("allocated", "reserved", "process") and row.gpus == 1:
        cards = _cards(base.convention == "process")
        wrong = scoring.wrong_verdict(predicted, measured, cards)
        between = scoring.wrong_verdict(Interval.exact(predicted.likely), measured, cards)
    return replace(
        base,
        predicted=predicted,
        error=scoring.error_of(predicted.likely, measured),
        hit=None if predicted.low == predicted.high else predicted.low <= measured <= predicted.high,
        wrong=wrong[0] if wrong else None,
        between=between[0] if between else None,
        card=wrong[1] if wrong else None,
        phase=phase,
        assumed=assumed,
    )


def _context(device: Device | None) -> Interval:
    if device is None:
        raise Unmapped("the GPU isn't stated, so its context isn't known")
    return context_memory(device)[0]


def _ledger(asked: Question) -> Ledger:
    device = asked.device
    context = _context(device) if asked.convention == "process" else None
    capability = device.gpu.compute_capability if device else None
    return predict(asked.spec, asked.job, compute_capability=capability, context=context)


def _pool(asked: Question) -> Interval:
    """What a server's budget leaves to KV cache."""
    total = Interval.exact(asked.pool_of_bytes or 0)
    capability = asked.device.gpu.compute_capability if asked.device else None
    found = budget(asked.spec, asked.job, total, total, capability)
    if found is None:
        raise Unmapped("no server's budget")
    return found.pool


def _figure(asked: Question, ledger: Ledger) -> tuple[Interval, str, tuple[Entry, ...]]:
    """The figure of the ledger that a row is compared with, the phase it is of, and the entries behind it."""
    if asked.convention in ("weights", "kv cache"):
        names = ("weights", "adapters") if asked.convention == "weights" else ("kv cache",)
        phase = asked.phase or ledger.peak.phase
        entries = tuple(e for e in ledger.at(phase) if e.component in names)
        return _sum(entries), phase, entries
    if asked.phase is not None:
        entries = tuple(e for e in ledger.at(asked.phase) if e.component in ("weights", "adapters"))
        loaded = _sum(entries)
        if asked.convention == "process":
            loaded = loaded + _context(asked.device)
        return loaded, asked.phase, entries
    figure: Interval = getattr(ledger.peak, asked.convention)
    return figure, ledger.peak.phase, ledger.at(ledger.peak.phase)


def _sum(entries: tuple[Entry, ...]) -> Interval:
    total = Interval.exact(0)
    for entry in entries:
        total = total + entry.bytes
    return total


def _model(row: Row, folder: Path) -> ModelSpec:
    if row.config is None:
        raise Unmapped("the model's shape isn't stated")
    path = folder / row.config
    if path.parent != folder:
        raise Unmapped(f"config {row.config!r} isn't a file name")
    return _read(path)


@cache
def _read(path: Path) -> ModelSpec:
    return read_model(str(path))


def _device(row: Row) -> Device | None:
    """The card of a row; None when it isn't stated or not in the catalogue. Of cards that share a name, the first."""
    if row.gpu is None:
        return None
    text = re.sub(r"\(.*?\)|^\s*\d+\s*x\s|\bx\s?\d+\s*$", " ", row.gpu).strip()
    try:
        device = find_gpu(text)
    except AmbiguousNameError as error:
        device = find_gpu(error.choices[0])
    except UsageError:
        return None
    cuda = re.search(r"\bCUDA (\d+\.\d)", row.framework, re.ASCII) or re.search(
        r"\+cu(\d\d)(\d)\b", row.framework, re.ASCII
    )
    version = ".".join(cuda.groups()) if cuda else ""
    return replace(device, driver=DRIVERS.get(version))


@cache
def _cards(process: bool) -> tuple[tuple[int, str], ...]:
    """Discrete cards of the catalogue by what one job can use, or (``process``) by what CUDA sees, smallest first."""
    found = []
    for gpu in all_gpus():
        if gpu.shares_system_memory:
            continue
        room = usable(Device(gpu=get_gpu(gpu.name)))
        size = room.visible_bytes if process else room.usable_bytes
        found.append((size.likely, gpu.name))
    return tuple(sorted(found))


def _said(asked: Question) -> str:
    job = asked.job
    precision = job.quantization.dtype if job.quantization else job.precision.weights
    words = [job.task, job.method, precision, f"{job.micro_batch} × {job.seq_len:,} tokens"]
    if job.training:
        words += [job.optimizer.name, f"checkpointing {job.checkpointing}", f"{job.loss} loss"]
    else:
        words += [f"{job.new_tokens:,} new", f"logits {job.logits}"]
    return ", ".join([*words, f"{job.attention} attention"])
