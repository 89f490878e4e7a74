"""The process of a dry run: ``python -m loadmaster.dryrun.child ASKED TOLD``, two file descriptors; see ``process``.

It says what it does while it does it, then what it found, or in one sentence why not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from loadmaster.dryrun.finishing import finish, keeping, trace_of
from loadmaster.dryrun.request import Failed, Finished, Message, Progress, Request
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import LoadmasterError, MissingExtraError

BEAT_S = 0.5
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_OURS = Path(__file__).parents[1]


class Teller:
    """Writes messages to the parent, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._pid = os.getpid()

    def tell(self, message: Message) -> None:
        """One line; a parent that has gone isn't told, nor do forked workers of the program speak."""
        if os.getpid() != self._pid:
            return
        line = memoryview(msgspec.json.encode(message) + b"\n")
        with self._lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]

    def progress(self, text: str, done: float | None = None, total: int | None = None) -> None:
        """What is being done."""
        self.tell(Progress(text=text, done=done, total=total))


def main(arguments: list[str]) -> int:
    """Read the request, do it, tell."""
    _die_with_parent()
    os.environ.pop("PYTHONSAFEPATH", None)
    asked, told = (int(each) for each in arguments)
    os.set_inheritable(told, False)
    teller = Teller(told)
    with os.fdopen(asked, "rb") as pipe:
        request = msgspec.json.decode(pipe.read(), type=Request)
    try:
        with keeping() as kept, _heartbeat(request, teller):

            def end(record: DryRun) -> NoReturn:
                try:
                    teller.progress("summing up")
                    teller.tell(Finished(record=finish(record, trace_of(record, kept), request)))
                except LoadmasterError as error:
                    teller.tell(_sentence(error))
                finally:
                    _leave()

            end(_run(request, teller, end))
    except LoadmasterError as error:
        teller.tell(_sentence(error))
    except Exception as error:
        teller.tell(_failed(request, error))
    _leave()


def _sentence(error: LoadmasterError) -> Failed:
    return Failed(message=str(error), hint=error.hint, exit_code=error.exit_code)


def _leave() -> NoReturn:
    """Nothing of the program's may run any more: no exit handlers, no threads."""
    sys.stdout.flush()
    os._exit(0)


def _die_with_parent() -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(request: Request, teller: Teller, end: Callable[[DryRun], NoReturn]) -> DryRun:
    teller.progress("importing torch")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("a dry run", "dryrun") from None
    if request.kind == "script":
        from loadmaster.dryrun.scripts.run import run_script

        return run_script(
            request.name, request.argv, request.card, request.conf, request.steps,
            assume=request.assume, context_bytes=request.context_bytes, on_swallowed=end,
        )  # fmt: skip
    if request.kind == "factory":
        from loadmaster.dryrun.factories import run_factory

        return run_factory(
            request.name, request.card, request.conf, request.steps,
            assume=request.assume, context_bytes=request.context_bytes,
        )  # fmt: skip
    return _simulate(request, teller)


def _simulate(request: Request, teller: Teller) -> DryRun:
    if request.job is None or request.fields is None:
        raise AssertionError("a model comes with a job")

    def progress(stage: str, _: float) -> None:
        teller.progress(stage)

    if request.layout is not None:
        from loadmaster.dryrun.layouts.describe import parse_parallel
        from loadmaster.dryrun.several import simulate_several

        parallel = parse_parallel(**request.layout)
        return simulate_several(request, request.job, request.fields, parallel, progress)
    from loadmaster.dryrun.programs.simulate import simulate

    return simulate(
        request.fields, request.name, request.job, request.card,
        conf=request.conf, steps=request.steps, progress=progress, context_bytes=request.context_bytes,
        assume=request.assume,
    )  # fmt: skip


def _failed(request: Request, error: Exception) -> Failed:
    """An error that nobody foresaw, as a sentence with its place: in the user's code if it passed there."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.lineno]
    theirs = [
        each
        for each in frames
        if _OURS not in Path(each.filename).parents and "site-packages" not in each.filename
    ]
    at = (theirs or frames)[-1]
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if request.kind != "model":
        traceback.print_exception(error)
    return Failed(
        message=f"the dry run of {request.name} failed in {Path(at.filename).name}, line {at.lineno}: {what[:600]}",
        hint=None,
        exit_code=1,
    )


@contextmanager
def _heartbeat(request: Request, teller: Teller) -> Iterator[None]:
    """Says where the program is, twice a second, while a session is up."""
    over = threading.Event()

    def beat() -> None:
        ended, length, steps = 0, 0, 0
        """Operators when the last step ended, and how many it had."""
        while not over.wait(BEAT_S):
            current = getattr(sys.modules.get("loadmaster.dryrun.session"), "current", None)
            session = current() if current is not None else None
            if session is None:
                continue
            place, operators = session.tracker.place, session.mode.operators
            if session.watch.steps != steps:
                steps, length, ended = session.watch.steps, operators - ended, operators
            part = min((operators - ended) / length, 0.99) if length else 0.0
            where = f"step {min(steps + 1, request.steps)} of {request.steps}, {place.phase}"
            if not steps and place.phase == "load":
                where = "building the model"
            teller.progress(f"{where}: {operators:,} operators", steps + part, request.steps)

    threading.Thread(target=beat, daemon=True, name="progress").start()
    try:
        yield
    finally:
        over.set()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
