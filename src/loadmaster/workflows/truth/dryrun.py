"""The dry run as an engine of ``loadmaster truth``: each row's program in a child process, two at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from loadmaster.dryrun.layouts.describe import Parallel
from loadmaster.errors import LoadmasterError, MissingExtraError
from loadmaster.hardware import Device
from loadmaster.hardware.usable import context_memory
from loadmaster.jobs.job import Job
from loadmaster.memory import Ledger
from loadmaster.records import Interval, Record
from loadmaster.workflows.truth.mapping import Question
from loadmaster.workflows.truth.rows import Row
from loadmaster.workflows.truth.sharded import conf_of, parallel_of

AT_ONCE = 2
"""Programs that run side by side: each takes a core and half a GiB."""


class Program(Record, kw_only=True):
    """What a child runs."""

    fields: dict[str, Any]
    name: str
    job: Job
    parallel: Parallel | None = None
    conf: str = ""
    capability: tuple[int, int] = (8, 0)
    context: Interval | None = None


def ledgers(asked: Sequence[tuple[Row, Question | str]], folder: Path) -> list[Ledger | str]:
    """For each row the dry run's ledger, or why there is none. Raises MissingExtraError without torch."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise MissingExtraError("a dry run", "dryrun")
    context = multiprocessing.get_context("spawn")
    workers = min(AT_ONCE, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting = [
            pool.submit(_run, msgspec.json.encode(program)) if isinstance(program, Program) else program
            for program in (_program(row, question, folder) for row, question in asked)
        ]
        return [one if isinstance(one, str) else _result(one) for one in waiting]


def _result(future: Any) -> Ledger | str:
    try:
        answer: Ledger | str = msgspec.json.decode(future.result(), type=Ledger | str)
        return answer
    except BrokenProcessPool:
        return "the dry run's process died"


def _program(row: Row, question: Question | str, folder: Path) -> Program | str:
    if isinstance(question, str):
        return question
    if question.pool_of_bytes is not None or row.config is None:
        return "a server's budget: nothing to run"
    fields = json.loads((folder / row.config).read_text(encoding="utf-8"))
    if "model_type" not in fields:
        return "the source's own program: no model of transformers to run"
    return Program(
        fields=fields,
        name=row.config.removesuffix(".json"),
        job=question.job,
        parallel=parallel_of(row),
        conf=conf_of(row),
        capability=_capability(question.device),
        context=context_memory(question.device)[0] if question.device is not None else None,
    )


def _capability(device: Device | None) -> tuple[int, int]:
    text = device.gpu.compute_capability if device is not None else None
    major, _, minor = (text or "8.0").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (8, 0)


def _run(encoded: bytes) -> bytes:
    """In the child: the program's ledger, or one sentence."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import warnings

    from loadmaster.dryrun.card import Card
    from loadmaster.dryrun.programs.simulate import simulate

    warnings.simplefilter("ignore")
    program = msgspec.json.decode(encoded, type=Program)
    card = Card(capability=program.capability)
    try:
        if program.parallel is None:
            found = simulate(
                program.fields,
                program.name,
                program.job,
                card,
                conf=program.conf,
                context_bytes=program.context,
            )
        else:
            found = _sharded(program, program.parallel, card)
    except LoadmasterError as error:
        return msgspec.json.encode(str(error))
    except Exception as error:
        return msgspec.json.encode(
            f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
        )
    return msgspec.json.encode(found.ledger)


def _sharded(program: Program, parallel: Parallel, card: Any) -> Any:
    """The worst kind of rank."""
    from loadmaster.dryrun.request import Request
    from loadmaster.dryrun.several import simulate_several

    request = Request(
        kind="model", name=program.name, card=card, fields=program.fields, job=program.job, conf=program.conf,
        context_bytes=program.context,
    )  # fmt: skip
    return simulate_several(request, program.job, program.fields, parallel, lambda *_: None)
