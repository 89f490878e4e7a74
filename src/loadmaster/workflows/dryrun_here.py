"""A dry run in this process: a module with a step, or a ``with`` block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadmaster.dryrun.assume import parse_assumption
from loadmaster.dryrun.finishing import finish, keeping, trace_of
from loadmaster.dryrun.request import Request
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import BadValueError, UsageError
from loadmaster.records import replace


def run(request: Request, model: Any, batch: Any, step: Callable[..., Any] | None, optimizer: Any) -> DryRun:
    """A step of a module, or of what a function returns; its errors pass unchanged."""
    if not callable(model):
        raise BadValueError(
            "model", type(model).__name__, "a name, a path, a module or a function that returns one"
        )
    if step is not None and not callable(step):
        raise BadValueError("step", type(step).__name__, "a function of model and batch")
    from loadmaster.dryrun.context import run_step

    with keeping() as kept:
        found = run_step(
            model, batch, step, optimizer=optimizer, steps=request.steps, card=request.card, conf=request.conf,
            assumptions=tuple(parse_assumption(each) for each in request.assume), context_bytes=request.context_bytes,
        )  # fmt: skip
        return finish(found, trace_of(found, kept), request)


def context(request: Request, how: dict[str, Any]) -> Any:
    """A context manager; code in it sees the card that was named and can run out of its memory."""
    if how:
        raise UsageError(f"{', '.join(sorted(how))}: words for a model by name")
    from loadmaster.dryrun.context import Context

    class Block(Context):
        """As ``dryrun.context.Context``, with what was asked beside the run."""

        def __enter__(self) -> Block:
            self._keeping = keeping()
            self._kept = self._keeping.__enter__()
            try:
                super().__enter__()
            except BaseException:
                self._keeping.__exit__(None, None, None)
                raise
            return self

        def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
            try:
                super().__exit__(kind, *error)
            finally:
                self._keeping.__exit__(None, None, None)
            found = self.result
            self._result = finish(found, trace_of(found, self._kept), request)

    limited = request.capacity_bytes is not None and not request.try_confs
    return Block(
        replace(request.card, limited=limited), request.conf, context_bytes=request.context_bytes,
        assumptions=tuple(parse_assumption(each) for each in request.assume),
    )  # fmt: skip
