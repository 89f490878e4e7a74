"""Peaks of very many jobs at once: the ledger's own moments, evaluated on NumPy arrays.

Numeric fields may differ from job to job; jobs that differ in a choice (checkpointing, method, optimizer ...) are
grouped, because a choice changes which tensors there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job, Lora
from loadmaster.memory.timeline import moments
from loadmaster.models.spec import Attention, ModelSpec
from loadmaster.records import replace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.int64]

NUMBERS = ("micro_batch", "seq_len", "new_tokens")
"""Fields of Job that may be an array within a group; ``rank`` is Lora's."""


def evaluate(
    spec: ModelSpec, jobs: Sequence[Job] | Job, columns: Mapping[str, Any] | None = None
) -> dict[str, Column]:
    """Highest allocated bytes of each job, as int64 arrays: ``peak`` and one array for each phase.

    ``jobs`` is a list of Jobs, or one Job with ``columns``: equally long arrays by field name (``micro_batch``, ``seq_len``,
    ``new_tokens``, ``rank``, and any choice such as ``checkpointing``, as an array of its values). Shapes: (number of jobs,).
    Raises BadValueError for columns of different lengths.
    """
    import numpy as np

    if isinstance(jobs, Job):
        return _columns(spec, jobs, {k: np.asarray(v) for k, v in (columns or {}).items()})
    groups: dict[Job, list[int]] = {}
    for index, job in enumerate(jobs):
        groups.setdefault(_choice(job), []).append(index)
    found: dict[str, Column] = {}
    for indices in groups.values():
        chosen = [jobs[i] for i in indices]
        numbers: dict[str, Any] = {
            f: np.array([getattr(j, f) for j in chosen], dtype=np.int64) for f in NUMBERS
        }
        if chosen[0].lora is not None:
            numbers["rank"] = np.array([j.lora.rank for j in chosen if j.lora is not None], dtype=np.int64)
        _scatter(found, _group(spec, chosen[0], numbers), np.array(indices), len(jobs))
    return found


def _columns(spec: ModelSpec, base: Job, columns: dict[str, Any]) -> dict[str, Column]:
    import numpy as np

    lengths = {len(c) for c in columns.values()}
    if len(lengths) != 1:
        raise BadValueError("columns", sorted(lengths), "one length for all of them")
    count = lengths.pop()
    choices = sorted(set(columns) - {*NUMBERS, "rank"})
    keys = np.zeros(count, dtype=np.int64)
    values = []
    for name in choices:
        unique, inverse = np.unique(columns[name], return_inverse=True)
        keys = keys * len(unique) + inverse
        values.append(unique)
    found: dict[str, Column] = {}
    for key in np.unique(keys):
        where = np.nonzero(keys == key)[0]
        job, rest = base, int(key)
        for name, unique in zip(reversed(choices), reversed(values), strict=True):
            rest, position = divmod(rest, len(unique))
            job = replace(job, **{name: unique[position].item()})
        numbers = {n: np.asarray(columns[n], dtype=np.int64)[where] for n in columns if n not in choices}
        _scatter(found, _group(spec, job, numbers), where, count)
    return found


def _group(spec: ModelSpec, job: Job, numbers: dict[str, Any]) -> dict[str, Column]:
    import numpy as np

    masks = _windows(spec, job, numbers)
    if masks is not None:
        found: dict[str, Any] = {}
        for mask in np.unique(masks):
            where = np.nonzero(masks == mask)[0]
            _scatter(found, _uniform(spec, job, {n: v[where] for n, v in numbers.items()}), where, len(masks))
        return found
    return _uniform(spec, job, numbers)


def _windows(spec: ModelSpec, job: Job, numbers: dict[str, Any]) -> Column | None:
    """For each job how many kinds of sliding window its sequences outgrow: a mask changes the attention kernel."""
    windows = sorted(
        {b.mixer.window for b in spec.decoder.blocks if isinstance(b.mixer, Attention) and b.mixer.window}
    )
    if not windows or "seq_len" not in numbers:
        return None
    import numpy as np

    prompt = numbers["seq_len"] - numbers.get("new_tokens", job.new_tokens)
    counts: Column = np.searchsorted(windows, prompt) * (len(windows) + 1) + np.searchsorted(
        windows, numbers["seq_len"]
    )
    return counts


def _uniform(spec: ModelSpec, job: Job, numbers: dict[str, Any]) -> dict[str, Column]:
    """Jobs that differ in numbers alone and take the same kernels."""
    import numpy as np

    rank = numbers.pop("rank", None)
    changed = replace(job, **numbers)
    if rank is not None:
        changed = replace(changed, lora=replace(job.lora or Lora(), rank=rank))
    found: dict[str, Any] = {}
    for moment in moments(spec, changed, detail=False):
        total = moment.total_bytes
        found[moment.phase] = total if moment.phase not in found else np.maximum(found[moment.phase], total)
    peak: Any = 0
    for total in found.values():
        peak = np.maximum(peak, total)
    return {"peak": peak, **found}


def _scatter(found: dict[str, Column], part: dict[str, Column], where: Column, count: int) -> None:
    import numpy as np

    for phase, values in part.items():
        found.setdefault(phase, np.zeros(count, dtype=np.int64))[where] = values


def _choice(job: Job) -> Job:
    """The job with its numbers taken out: equal for jobs of one group."""
    lora = replace(job.lora, rank=1) if job.lora is not None else None
    return replace(
        job,
        micro_batch=1,
        seq_len=1,
        new_tokens=min(job.new_tokens, 1),
        grad_accumulation=min(job.grad_accumulation, 2),
        lora=lora,
    )
