"""Published measurements, one JSON object a line: read, checked, and kept as they were stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadmaster.errors import BadFileError
from loadmaster.records import Record
from loadmaster.units import MIB

Confidence = Literal["high", "medium", "low"]
LIMIT_BYTES = 64 * MIB
"""Largest set that is read: a row takes about 2 kB, so this is some 30,000 of them."""


class Measured(Record, kw_only=True):
    """A measured figure: ``what`` counter it is of, its ``bytes``, and over which devices (``scope``)."""

    what: str
    bytes: int
    value: float | None = None
    unit: str | None = None
    scope: str | None = None


class Row(Record, kw_only=True):
    """One measurement with the configuration it was taken in, in its source's own words; unknown is None."""

    id: str
    group: str
    model: str | None = None
    measured: Measured
    confidence: Confidence
    source: str = ""
    url_hint: str = ""
    kind: Literal["train", "infer"]
    framework: str = ""
    config: str | None = None
    method: str | None = None
    lora: dict[str, Any] | None = None
    weights_dtype: str | None = None
    compute_dtype: str | None = None
    optimizer: dict[str, Any] | None = None
    batch_size: int | None = None
    seq_len: int | None = None
    image: dict[str, Any] | None = None
    grad_accum: int | None = None
    checkpointing: str | None = None
    attention: str | None = None
    fused_loss: str | None = None
    compile: bool | str | None = None
    parallel: dict[str, Any] | None = None
    offload: str | None = None
    gpu: str | None = None
    notes: str | None = None

    @property
    def gpus(self) -> int | None:
        """Over how many devices the job ran; None when that isn't stated."""
        count = (self.parallel or {}).get("gpus")
        return count if isinstance(count, int) and not isinstance(count, bool) else None


class RowSet(Record, kw_only=True):
    """A file's rows in its order, and the fields in it that nothing here reads (with how many rows have them)."""

    path: str
    rows: tuple[Row, ...]
    unknown_fields: dict[str, int]


def read_rows(path: Path) -> RowSet:
    """The rows of a set; raises BadFileError, with the line, for anything that isn't one."""
    rows: list[Row] = []
    unknown: dict[str, int] = {}
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        row, strange = _row(path, number, line)
        if row.id in seen:
            raise BadFileError(path, f"line {number}: the id {row.id!r} was used in line {seen[row.id]}")
        seen[row.id] = number
        for name in strange:
            unknown[name] = unknown.get(name, 0) + 1
        rows.append(row)
    if not rows:
        raise BadFileError(path, "holds no measurements")
    return RowSet(path=str(path), rows=tuple(rows), unknown_fields=dict(sorted(unknown.items())))


def _lines(path: Path) -> list[bytes]:
    try:
        if not path.is_file():
            raise BadFileError(path, "is not a regular file" if path.exists() else "no such file")
        with path.open("rb") as file:
            data = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise BadFileError(path, f"cannot be read ({error.strerror or error})") from None
    if len(data) > LIMIT_BYTES:
        raise BadFileError(path, f"is larger than {LIMIT_BYTES // MIB} MiB, which no such set is")
    return data.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _row(path: Path, number: int, line: bytes) -> tuple[Row, list[str]]:
    try:
        raw = msgspec.json.decode(line, type=dict[str, Any])
        known, strange = _split(raw, Row, "")
        if isinstance(known.get("measured"), dict):
            known["measured"], inner = _split(known["measured"], Measured, "measured.")
            strange += inner
        row = msgspec.convert(known, Row)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise BadFileError(path, f"line {number}: is not a measurement ({reason})") from None
    problem = _problem(row)
    if problem:
        raise BadFileError(path, f"line {number}: {problem}")
    return row, strange


def _split(raw: dict[str, Any], kind: type[msgspec.Struct], lead: str) -> tuple[dict[str, Any], list[str]]:
    names = set(kind.__struct_fields__)
    return (
        {key: value for key, value in raw.items() if key in names},
        [lead + key for key in raw if key not in names],
    )


def _problem(row: Row) -> str | None:
    if not 0 < row.measured.bytes < 2**60:
        return f"measured.bytes is {row.measured.bytes}; expected more than 0 and less than 1 EiB"
    for field in ("batch_size", "seq_len", "grad_accum"):
        value = getattr(row, field)
        if value is not None and value < 1:
            return f"{field} is {value}; expected 1 or more, or null when it isn't known"
    return None
