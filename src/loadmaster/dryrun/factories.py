"""A factory of the user's: a function that returns a model, an example batch, and maybe its loss and its optimizer."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from loadmaster.dryrun import context as steps_of
from loadmaster.dryrun.assume import parse_assumption
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.context import Context
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import BadFileError, BadValueError, LoadmasterError, UnknownNameError
from loadmaster.records import Interval

CONTRACT = (
    "(model, batch), (model, batch, loss) or (model, batch, loss, optimizer), or a dict with these keys"
)
KEYS = ("model", "batch", "loss", "optimizer")


class FactoryError(LoadmasterError):
    """The factory, or the model that it made, raised an exception of its own."""


class Parts(NamedTuple):
    """What a factory returns."""

    model: torch.nn.Module
    batch: Any
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Any = None


def run_factory(
    target: str,
    card: Card | None = None,
    conf: str = "",
    steps: int = 2,
    *,
    assume: Sequence[str] = (),
    context_bytes: Interval | None = None,
) -> DryRun:
    """``steps`` training steps of what ``package.module:function`` or ``file.py:function`` returns, on ``card``.

    The factory runs with the simulated device in place: parameters have no data, ``cuda`` is there. Raises BadFileError and
    UnknownNameError where there is no such function, BadValueError where it returns something else, FactoryError with the line
    where code of the user's raises. For a process of its own.
    """
    context = Context(
        card, conf, name=target, program="training steps", context_bytes=context_bytes,
        assumptions=tuple(parse_assumption(each) for each in assume),
    )  # fmt: skip
    try:
        with context:
            parts = parts_of(function_of(target)())
            context.program = f"{steps} steps of {type(parts.model).__name__}"
            optimizer = parts.optimizer
            if isinstance(optimizer, torch.optim.Optimizer):
                optimizer = _given(optimizer)
            steps_of._run(context.session, lambda: parts.model, parts.batch, _step(parts), optimizer, steps)
    except torch.OutOfMemoryError:
        if context.session.tracker.oom is None:
            raise
    except LoadmasterError:
        raise
    except (Exception, SystemExit) as error:
        _show(error)
        raise FactoryError(f"{target} failed{_line(error)}: {_words(error)}") from error
    return context.result


def function_of(target: str) -> Callable[[], Any]:
    """The function by its name; raises BadFileError or UnknownNameError."""
    place, _, name = target.rpartition(":")
    try:
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
    except LoadmasterError:
        raise
    except (Exception, SystemExit) as error:
        _show(error)
        raise FactoryError(f"{place} can't be imported{_line(error)}: {_words(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        import difflib

        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownNameError(f"function of {place}", name, difflib.get_close_matches(name, names, n=3))
    function: Callable[[], Any] = found
    return function


def parts_of(made: Any) -> Parts:
    """What a factory returned, by place or by name; raises BadValueError."""
    if isinstance(made, Mapping) and "model" in made and set(made) <= set(KEYS):
        made = tuple(made.get(key) for key in KEYS)
    if not isinstance(made, tuple) or not 2 <= len(made) <= len(KEYS):
        raise BadValueError("what the factory returns", type(made).__name__, CONTRACT)
    parts = Parts(*made)
    if not isinstance(parts.model, torch.nn.Module):
        raise BadValueError("the factory's model", type(parts.model).__name__, "a torch.nn.Module")
    if parts.batch is None:
        raise BadValueError("the factory's batch", None, "host tensors, or a dict, list or tuple of them")
    for name, part in (("loss", parts.loss), ("optimizer", parts.optimizer)):
        if part is not None and not callable(part) and not isinstance(part, torch.optim.Optimizer):
            raise BadValueError(f"the factory's {name}", type(part).__name__, "a function")
    return parts


def _file(path: Path) -> Any:
    if not path.is_file():
        raise BadFileError(path, "there is no such file")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadFileError(path, "is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.argv = [str(path)]  # what it may ask for are not our child's
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that this one needs
        raise BadFileError(name, "there is no module of this name here or among what is installed") from None


def _step(parts: Parts) -> Callable[..., None] | None:
    """A training step with the factory's loss; None: with the output's."""
    loss_of = parts.loss
    if loss_of is None:
        return None

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        named = batch if isinstance(batch, Mapping) else {}
        placed = () if named else batch if isinstance(batch, list | tuple) else (batch,)
        out = model(*placed, **named)
        loss = loss_of(out)
        del out
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _given(optimizer: torch.optim.Optimizer) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda _: optimizer


_HERE = str(Path(__file__).parents[1])


def _show(error: BaseException) -> None:
    """The traceback from the user's code on, as Python shows it; nothing where none of it was reached."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_HERE, "<")):
        trace = trace.tb_next
    if trace is not None:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, trace)


def _line(error: BaseException) -> str:
    """The innermost line of the user's that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        f for f in frames if not f.filename.startswith((_HERE, "<")) and "site-packages" not in f.filename
    ]
    return f" in {Path(theirs[-1].filename).name}, line {theirs[-1].lineno}" if theirs else ""


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())[:600]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
