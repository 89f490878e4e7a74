"""Arithmetic of the score: errors, percentiles, false fits. No model and no job here, only figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadmaster.memory import Entry
from loadmaster.records import Interval, Record


class Outcome(Record, kw_only=True):
    """One row with its prediction, or the reason why there is none. ``error`` is predicted / measured - 1 in the row's
    convention; ``hit``: the interval holds the measured figure; ``wrong``: on ``card``, the smallest such one, the verdict
    is fits and the measured figure doesn't (``false fit``), or does_not_fit and it does (``false refusal``). The verdict is
    the planner's: fits if the high end fits, does_not_fit if the likely figure doesn't. ``between``: the same where the
    likely figure alone decides, so that no answer is left out as tight."""

    id: str
    group: str
    confidence: str
    model: str | None = None
    gpus: int | None
    what: str
    convention: str | None
    measured_bytes: int
    predicted: Interval | None = None
    error: float | None = None
    hit: bool | None = None
    wrong: str | None = None
    between: str | None = None
    card: str | None = None
    phase: str | None = None
    reason: str | None = None
    assumed: tuple[str, ...] = ()


class Score(Record, kw_only=True):
    """Over all rows of one confidence. ``mean_of_group_medians`` and ``p90`` are means over groups of each group's
    median and 90th percentile of the absolute error; ``median_over_rows`` and ``p90_over_rows`` pool the rows instead.
    Everything but ``rows`` is over predicted rows alone."""

    rows: int
    predicted: int
    groups: int
    mean_of_group_medians: float | None
    p90: float | None
    median_over_rows: float | None
    p90_over_rows: float | None
    false_fits: int
    false_refusals: int
    false_fits_by_likely: int
    false_refusals_by_likely: int
    interval_hit_rate: float | None


class GroupScore(Record, kw_only=True):
    """Rows of one group, confidence and convention; ``bias`` is the median of the signed error."""

    group: str
    confidence: str
    convention: str | None
    rows: int
    predicted: int
    median: float | None
    p90: float | None
    bias: float | None


class Worst(Record, kw_only=True):
    """A row with a large error: the job that was asked about, and the entries that make up its prediction."""

    id: str
    job: str
    entries: tuple[Entry, ...]


class Report(Record, kw_only=True):
    """A whole set scored. ``single_device`` scores the rows of one GPU alone; ``worst`` has the largest errors first."""

    path: str
    group: str | None
    score: dict[str, Score]
    single_device: dict[str, Score]
    groups: tuple[GroupScore, ...]
    rows: tuple[Outcome, ...]
    worst: tuple[Worst, ...]
    unknown_fields: dict[str, int]
    engine: str = "plan"
    beside: dict[str, Score] = msgspec.field(default_factory=dict)
    """The closed form's score on the rows that another engine predicts."""


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value below which ``share`` of them lie, interpolated between neighbours (NumPy's default); None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def error_of(predicted_bytes: int, measured_bytes: int) -> float:
    """Predicted / measured - 1."""
    return predicted_bytes / measured_bytes - 1


def wrong_verdict(
    predicted: Interval, measured_bytes: int, cards: Sequence[tuple[int, str]]
) -> tuple[str, str] | None:
    """(``false fit`` or ``false refusal``, card) for the smallest of ``cards`` (bytes, name; smallest first) on which the
    verdict is wrong: its high end fits and the measured figure doesn't, or its likely figure doesn't fit and the measured
    one does. None when it is right, or tight, on every card."""
    for size, name in cards:
        if predicted.high <= size < measured_bytes:
            return "false fit", name
        if measured_bytes <= size < predicted.likely:
            return "false refusal", name
    return None


def score(outcomes: Sequence[Outcome]) -> Score:
    """The score of some rows."""
    done = [o for o in outcomes if o.error is not None]
    by_group: dict[str, list[float]] = {}
    for outcome in done:
        by_group.setdefault(outcome.group, []).append(abs(outcome.error or 0.0))
    errors = [abs(o.error or 0.0) for o in done]
    return Score(
        rows=len(outcomes),
        predicted=len(done),
        groups=len(by_group),
        mean_of_group_medians=_mean(percentile(e, 0.5) for e in by_group.values()),
        p90=_mean(percentile(e, 0.9) for e in by_group.values()),
        median_over_rows=percentile(errors, 0.5),
        p90_over_rows=percentile(errors, 0.9),
        false_fits=sum(o.wrong == "false fit" for o in done),
        false_refusals=sum(o.wrong == "false refusal" for o in done),
        false_fits_by_likely=sum(o.between == "false fit" for o in done),
        false_refusals_by_likely=sum(o.between == "false refusal" for o in done),
        interval_hit_rate=_mean(float(bool(o.hit)) for o in done),
    )


def group_scores(outcomes: Sequence[Outcome]) -> tuple[GroupScore, ...]:
    """One line for each group, confidence and convention, in the order in which they first come."""
    found: dict[tuple[str, str, str | None], list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.group, outcome.confidence, outcome.convention), []).append(outcome)
    return tuple(_group(key, rows) for key, rows in found.items())


def _group(key: tuple[str, str, str | None], rows: list[Outcome]) -> GroupScore:
    errors = [o.error for o in rows if o.error is not None]
    return GroupScore(
        group=key[0],
        confidence=key[1],
        convention=key[2],
        rows=len(rows),
        predicted=len(errors),
        median=percentile(map(abs, errors), 0.5),
        p90=percentile(map(abs, errors), 0.9),
        bias=percentile(errors, 0.5),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
