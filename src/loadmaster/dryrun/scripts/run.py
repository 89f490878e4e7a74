"""A training script as it is, on the simulated device: up to some optimizer steps, or to its end.

The script is code and is run, with the rights of who runs it. It trains nothing, and the libraries it uses save nothing and ask
no network; what it writes with ``open`` it writes. What it prints goes where a program's output goes.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from loadmaster.dryrun.assume import parse_assumption
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.context import Context
from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.result import DryRun
from loadmaster.dryrun.tensors import Patches
from loadmaster.errors import BadFileError, BadValueError, LoadmasterError, OfflineError
from loadmaster.records import Interval

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "DISABLED",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "0",
}
"""Before libraries are imported: no network, weights loaded in one thread, no trackers of experiments."""


class StopRun(BaseException):
    """Enough steps have been seen. No Exception: scripts would swallow it."""


class ScriptError(LoadmasterError):
    """The script raised an exception of its own."""


PATIENCE = 10
"""How many times as many steps one optimizer makes while others that the script has made are waited for."""


SWALLOWED = 3
"""How often a script may swallow its end before it is ended without being asked."""


class _Steps:
    """Counts the steps of each optimizer; stops the script when every one that it has made has made enough."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self._made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._stops = 0
        self.on_swallowed: Callable[[], None] | None = None
        """Called where a script goes on all the same (``except:`` around its steps)."""
        self.idle: list[str] = []
        """Optimizers that had made no step when the script was stopped."""

    def install(self, patches: Patches) -> None:
        """Hear of optimizers when they are made: some make a step in every fifth round only, and their states count."""
        real: Any = Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            real(optimizer, *args, **kwargs)
            self._made.setdefault(optimizer, 0)

        patches.set(Optimizer, "__init__", init)
        handle = register_optimizer_step_post_hook(self)
        patches.later(handle.remove)

    def __call__(self, optimizer: Any, *_: Any) -> None:
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        counts = list(self._made.values())
        if min(counts) >= self.enough or max(counts) >= PATIENCE * self.enough:
            self.idle = sorted(type(each).__name__ for each, count in self._made.items() if not count)
            self._stops += 1
            if self._stops > SWALLOWED and self.on_swallowed is not None:
                self.on_swallowed()
            raise StopRun


def run_script(
    path: str | Path,
    argv: Sequence[str] = (),
    card: Card | None = None,
    conf: str = "",
    steps: int = 2,
    *,
    assume: Sequence[str] = (),
    context_bytes: Interval | None = None,
    on_swallowed: Callable[[DryRun], NoReturn] | None = None,
) -> DryRun:
    """What a script takes on ``card``; ``argv`` are its arguments, ``steps`` the optimizer steps after which it is stopped (each
    optimizer's, if it makes several), ``assume`` rules for operators without a fake kernel.

    Raises BadFileError, ScriptError with the script's line, LoadmasterError where something can't be simulated. Running out of
    memory is a result. For a process of its own: the script's modules and settings stay in it. A script that swallows even its
    end can only be left: ``on_swallowed`` gets the result, and must end the process.
    """
    path = Path(path)
    if not path.is_file():
        raise BadFileError(path, "there is no such file")
    if steps < 1:
        raise BadValueError("steps", steps, "1 or more")
    context = Context(
        card,
        conf,
        name=path.name,
        program=" ".join(["python", str(path), *argv]),
        assumptions=tuple(parse_assumption(each) for each in assume),
        context_bytes=context_bytes,
    )
    counter, patches = _Steps(steps), Patches()

    def leave() -> None:
        if on_swallowed is not None:
            counter.on_swallowed = None
            context.session.notes.extend(_notes(context, True, counter.idle))
            patches.undo()
            context.__exit__(None)
            on_swallowed(context.result)

    counter.on_swallowed = leave
    with _environment(), suppress(_RanOut), context:
        counter.install(patches)
        try:
            stopped = _run(path, argv, context)
        finally:
            patches.undo()
        context.session.notes.extend(_notes(context, stopped, counter.idle))
    return context.result


class _RanOut(Exception):  # noqa: N818 - a result
    """The script ended because memory ran out."""


@contextmanager
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(path: Path, argv: Sequence[str], context: Context) -> bool:
    """Run the script as ``python path argv`` would; returns whether it was stopped after its steps."""
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(path), *argv], [str(path.resolve().parent), *sys.path[1:]]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except StopRun:
        return True
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return False
        if context.session.tracker.oom is not None:
            # Whatever the script made of it: it ended there.
            raise _RanOut from error
        _failed(path, error)
    finally:
        sys.argv, sys.path = before
    return False


def _failed(path: Path, error: BaseException) -> NoReturn:
    if isinstance(error, SystemExit):
        code, words = (error.code, "") if isinstance(error.code, int) else (1, f": {error.code}")
        raise ScriptError(f"{path.name} ended with exit code {code}{words}") from None
    if isinstance(error, LoadmasterError):
        error.args = (f"{_line(path, error)}: {error}",)
        raise error
    if isinstance(error, RefusedError):
        raise ScriptError(f"{_line(path, error)}: {error}") from error
    if _asks_network(error):
        raise OfflineError(
            f"{_line(path, error)}: the script asks for something of the Hugging Face Hub that isn't in the cache here, "
            "and a dry run asks no network",
            hint="download it first (of weights a dry run reads the headers only), or give the script a local folder",
        ) from error
    _show(error)
    text, kind = " ".join(str(error).split()), type(error).__name__
    raise ScriptError(f"{_line(path, error)}: {f'{kind}: {text[:600]}' if text else kind}") from error


_OFFLINE = ("LocalEntryNotFoundError", "OfflineModeIsEnabled")


def _asks_network(error: BaseException | None) -> bool:
    """Whether an error is, or comes from, huggingface_hub's refusal to connect."""
    while error is not None:
        if type(error).__name__ in _OFFLINE or any(name in str(error) for name in _OFFLINE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _line(path: Path, error: BaseException) -> str:
    """The script's line that an exception passed, innermost."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path) and frame.lineno
    ]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


def _show(error: BaseException) -> None:
    """The traceback from the script on, as Python shows it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _ABOVE:
        trace = trace.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, trace, file=sys.stderr)


_ABOVE = {__file__, runpy.__file__, "<frozen runpy>"}


def _notes(context: Context, stopped: bool, idle: list[str]) -> Iterator[str]:
    session = context.session
    if not session.tracker.trace.blocks:
        yield "the script put nothing on the device"
    elif stopped:
        yield (
            f"stopped after {session.watch.steps} optimizer steps: what the script does later, such as an evaluation at its "
            "end, isn't seen"
        )
        if idle:
            yield f"made no step until then, and has no states in what is shown: {', '.join(idle)}"
    else:
        yield f"the script ran to its end, with {session.watch.steps} optimizer steps"
    if session.tracker.oom is not None:
        yield "the script ran out of memory, handled that and went on"
