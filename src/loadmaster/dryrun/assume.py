"""Operators without a fake kernel: what their results look like is assumed (``--assume NAMESPACE::OP=RULE``), or they are
refused.

A RULE says one result, several are joined by ``+``:

    like:N         a new tensor with the shape, type and device of the N-th argument, from 0 on
    like:N,DTYPE   the same, of another type: like:0,float32
    none           nothing (an operator that writes into its arguments)
"""

from __future__ import annotations

import re
from typing import Any

from loadmaster.errors import BadValueError, LoadmasterError
from loadmaster.records import Record

EXPECTED = "NAMESPACE::OP=RULE, where RULE is like:N, like:N,DTYPE or none, joined by + for several results"
_RULE = re.compile(r"like:(\d+)(?:,(\w+))?|none")
_OP = re.compile(r"\w+::\w+")


class Result(Record, kw_only=True):
    """One result: like the ``argument``-th argument (None: nothing), of type ``dtype`` (empty: the same)."""

    argument: int | None
    dtype: str = ""


class Assumption(Record, kw_only=True):
    """What an operator returns, as the user says."""

    op: str
    """As ``namespace::name``."""
    results: tuple[Result, ...]


def parse_assumption(text: str) -> Assumption:
    """An assumption as written on the command line; raises BadValueError."""
    op, _, rules = text.partition("=")
    found = []
    for rule in rules.split("+"):
        match = _RULE.fullmatch(rule.strip())
        if match is None or not _OP.fullmatch(op.strip()):
            raise BadValueError("assume", text, EXPECTED)
        argument = None if match[1] is None else int(match[1])
        if match[2] is not None and _dtype(match[2]) is None:
            raise BadValueError("assume", text, "a type of torch's after the comma, as float32 or bfloat16")
        found.append(Result(argument=argument, dtype=match[2] or ""))
    return Assumption(op=op.strip(), results=tuple(found))


class UnsupportedOperatorError(LoadmasterError):
    """An operator that a dry run can't work out, and whose results nobody said."""


def stand_in(mode: Any, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
    """The assumed results of an operator that failed to run without data; raises UnsupportedOperatorError where none were said,
    or what was raised where the operator is one of torch's own that failed for the program's own reasons."""
    name = func._schema.name
    assumption = mode.assumptions.get(name)
    if assumption is not None:
        return _results(assumption, args)
    if not _unsupported(func, error):
        raise error
    _, module = mode.tracker.place.now()
    where = f" in {module}" if module else ""
    if _depends_on_data(error):
        raise UnsupportedOperatorError(
            f"{name}{where} makes a shape or a number out of values that a dry run does not have",
            hint=f"say what it returns: --assume {name}=like:0",
        ) from error
    raise UnsupportedOperatorError(
        f"{name}{where} has no fake kernel: a dry run can't know what it returns",
        hint=f"say it: --assume {name}=like:0 (a tensor like its first argument), or register one with "
        f'torch.library.register_fake("{name}")',
    ) from error


def _results(assumption: Assumption, args: Any) -> Any:
    import torch

    found: list[Any] = []
    for result in assumption.results:
        if result.argument is None:
            found.append(None)
            continue
        like = args[result.argument] if result.argument < len(args) else None
        if not isinstance(like, torch.Tensor):
            raise BadValueError(
                "assume", assumption.op, f"an operator whose argument {result.argument} is a tensor"
            )
        found.append(torch.empty_like(like, dtype=_dtype(result.dtype) if result.dtype else like.dtype))
    return found[0] if len(found) == 1 else tuple(found)


def _unsupported(func: Any, error: Exception) -> bool:
    from torch._subclasses import fake_tensor

    kinds = (
        fake_tensor.UnsupportedOperatorException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.DataDependentOutputException,
        NotImplementedError,
    )
    return isinstance(error, kinds) or (func.namespace not in ("aten", "prims", "c10d") and _no_kernel(error))


def _no_kernel(error: Exception) -> bool:
    return any(
        word in str(error)
        for word in ("register_fake", "fake impl", "Meta", "data_ptr", "CUDA", "NVIDIA driver")
    )


def _depends_on_data(error: Exception) -> bool:
    from torch._subclasses import fake_tensor

    return isinstance(
        error, fake_tensor.DynamicOutputShapeException | fake_tensor.DataDependentOutputException
    )


def _dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None
