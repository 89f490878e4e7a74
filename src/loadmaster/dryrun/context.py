"""A simulated GPU around code as it is: with a Context ``device="cuda"`` is there; ``run_step`` runs training steps."""

from __future__ import annotations

import copy
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from loadmaster.dryrun import freeform, selftest
from loadmaster.dryrun.assume import Assumption
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.result import DryRun
from loadmaster.dryrun.scripts import adjustments
from loadmaster.dryrun.session import Session, current
from loadmaster.dryrun.summary import summarise
from loadmaster.dryrun.tensors import Patches
from loadmaster.errors import BadValueError, LoadmasterError
from loadmaster.records import Interval, replace


class Context:
    """Inside the block ``cuda`` is a simulated card: tensors on it have no data, ``torch.cuda`` answers for it, files aren't
    written. Host tensors are real, parameters of modules are not. Behind the block ``result`` says what was found; torch is as
    it was before. An exception of the block's own code passes; a result is there all the same.
    """

    def __init__(
        self,
        card: Card | None = None,
        conf: str = "",
        *,
        name: str = "program",
        program: str = "code in a with block",
        assumptions: tuple[Assumption, ...] = (),
        context_bytes: Interval | None = None,
    ) -> None:
        self.session = Session(card, conf=conf)
        self.session.mode.assumptions = {each.op: each for each in assumptions}
        self.name, self.program, self.context_bytes = name, program, context_bytes
        self.skipped: Counter[str] = Counter()
        self._patches = Patches()
        self._result: DryRun | None = None
        self._started_s = 0.0

    @property
    def result(self) -> DryRun:
        """What was found; raises LoadmasterError before the block has ended."""
        if self._result is None:
            raise LoadmasterError("a dry run has its result only after its with block has ended")
        return self._result

    def __enter__(self) -> Context:
        if current() is not None:
            raise LoadmasterError(
                "a dry run is under way in this process already: let it end before the next"
            )
        selftest.check()
        self._started_s = time.perf_counter()
        self.session.__enter__()
        try:
            freeform.install(self._patches, self.session)
            adjustments.install(self._patches, self.session, self.skipped)
        except BaseException:
            self._patches.undo()
            self.session.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._patches.undo()
        self.session.__exit__(None, None, None)
        tracker = self.session.tracker
        if tracker.oom is not None and kind is None:
            tracker.oom = replace(tracker.oom, handled=True)
        self._result = summarise(
            self.session,
            name=self.name,
            program=self.program,
            started_s=self._started_s,
            context_bytes=self.context_bytes,
            skipped=tuple(self.skipped.most_common()),
        )


def open_context(card: Card | None = None, conf: str = "", **options: Any) -> Context:
    """A Context on ``card`` (None: 80 GiB that are never full) with the allocator's settings ``conf``, to be entered with
    ``with``. Raises LoadmasterError on entering where torch can't be simulated or another dry run is under way."""
    return Context(card, conf, **options)


def run_step(
    model: Any,
    batch: Any,
    step: Callable[..., Any] | None = None,
    *,
    optimizer: Any = None,
    steps: int = 2,
    card: Card | None = None,
    conf: str = "",
    name: str = "",
    assumptions: tuple[Assumption, ...] = (),
    context_bytes: Interval | None = None,
) -> DryRun:
    """A training step of a module, or of what a function without arguments returns, on the simulated device.

    The module given is not changed: a copy of it is on the device. ``batch`` (host tensors in dicts, lists, tuples) is moved
    there once. ``step(model, batch)`` or ``step(model, batch, optimizer)`` is one step; None: forward, loss (the output's
    ``loss``, or its sum), backward, optimizer step, ``zero_grad``. ``optimizer``: an optimizer of the module's parameters, or a
    function or class that makes one of an iterable of parameters; None: AdamW. An exception of the step's passes unchanged,
    running out of memory does not: the result says where.
    """
    if steps < 1:
        raise BadValueError("steps", steps, "1 or more")
    label = name or (
        type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "model")
    )
    context = Context(
        card,
        conf,
        name=label,
        program=f"{steps} steps of {label}",
        assumptions=assumptions,
        context_bytes=context_bytes,
    )
    try:
        with context:
            _run(context.session, model, batch, step, optimizer, steps)
    except torch.OutOfMemoryError:
        if context.session.tracker.oom is None:
            raise  # the code's own
    return context.result


def _run(session: Session, model: Any, batch: Any, step: Any, optimizer: Any, steps: int) -> None:
    memo: dict[int, Any] = {}
    model = _copied(session, model, memo) if isinstance(model, torch.nn.Module) else _moved(session, model())
    session.watch.name(model)
    optimizer = _optimizer(session, optimizer, model, memo)
    batch = _on_device(session, batch)
    call: Callable[..., Any] = step if step is not None else _default_step
    takes = 3 if step is None else _positional(step)
    for _ in range(steps):
        done = session.watch.steps
        call(model, batch, optimizer) if takes >= 3 else call(model, batch)
        if session.watch.steps == done:
            session.tracker.enter("forward", session.tracker.place.step + 1)


def _copied(session: Session, model: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    """A copy with parameters and buffers on the device; ties are kept."""
    for tensor, category in [
        *((p, "parameters") for p in model.parameters()),
        *((b, "buffers") for b in model.buffers()),
    ]:
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fresh = session.device_tensor(meta, category)
        if isinstance(tensor, torch.nn.Parameter):
            fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
            fresh.__dict__.update(tensor.__dict__)
        memo[id(tensor)] = fresh
    found: torch.nn.Module = copy.deepcopy(model, memo)
    return found


def _moved(session: Session, model: Any) -> Any:
    """What a factory made: parts on the meta or host device go to the simulated one."""
    if not isinstance(model, torch.nn.Module):
        raise BadValueError("model", type(model).__name__, "a torch.nn.Module or a function that returns one")
    return session.device_module(model).to("cuda")


def _optimizer(session: Session, given: Any, model: torch.nn.Module, memo: dict[int, Any]) -> Any:
    trainable = [param for param in model.parameters() if param.requires_grad]
    if given is None:
        return torch.optim.AdamW(trainable) if trainable else None
    if not isinstance(given, torch.optim.Optimizer):
        if not callable(given):
            raise BadValueError(
                "optimizer",
                given,
                "an optimizer of the model's parameters, or what makes one, such as torch.optim.SGD",
            )
        return given(trainable)
    for state in given.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                memo[id(value)] = session.device_tensor(
                    torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta"),
                    "optimizer states",
                )
    for group in given.param_groups:
        if any(id(param) not in memo for param in group["params"]):
            raise BadValueError(
                "optimizer", type(given).__name__, "an optimizer of the model's own parameters"
            )
    return copy.deepcopy(given, memo)


def _on_device(session: Session, batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        moved = batch.to("cuda")
        session.tracker.tag(moved, "inputs")
        return moved
    if isinstance(batch, Mapping):
        return {key: _on_device(session, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_on_device(session, each) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_on_device(session, each) for each in batch)
    return batch.to("cuda") if hasattr(batch, "to") else batch


def _positional(step: Callable[..., Any]) -> int:
    """How many arguments a step takes, at most 3."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return 3
    return min(3, sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters))


def _default_step(model: Any, batch: Any, optimizer: Any) -> None:
    if isinstance(batch, Mapping):
        out = model(**batch)
    elif isinstance(batch, list | tuple):
        out = model(*batch)
    else:
        out = model(batch)
    loss = _loss(out)
    del out
    if loss.requires_grad and optimizer is not None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def _loss(out: Any) -> torch.Tensor:
    found = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    while found is None or not isinstance(found, torch.Tensor):
        if isinstance(out, torch.Tensor):
            found = out
        elif isinstance(out, Mapping):
            out = next(iter(out.values()))
        elif isinstance(out, list | tuple):
            out = out[0]
        else:
            raise BadValueError(
                "the model's output", type(out).__name__, "a tensor, or something with a loss"
            )
    return found if found.dim() == 0 else found.sum()
