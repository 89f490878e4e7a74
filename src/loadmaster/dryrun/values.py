"""What a program asks of data that a dry run doesn't have: known, expected, or stated answers.

Known: small tensors that came from the host, or were computed from such only, carry a real copy on the host, and operators on
them run on the copy too: masks, lengths, positions, shapes sent through the device.
Expected: a tensor may carry the value its elements have on average. Routing is taken as even: of one-hot masks over E
experts each element is 1/E, so that an expert gets its share of tokens. ``isfinite`` is true, ``isnan`` false.
Stated: anything else is 1.0, 0 or False. Every such answer is noted with the line of code that asked.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.expected import EXPECTED
from loadmaster.dryrun.known import LARGEST_KNOWN, Known, expected, forget, known, remember, whole
from loadmaster.dryrun.questions import QUESTIONS
from loadmaster.units import MIB

aten = torch.ops.aten
LARGEST_HOST_BYTES = 64 * MIB
"""Bytes of tensors that become real when they go to the host."""

UNKNOWN_OPS = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::rand",
    "aten::randn", "aten::randint", "aten::randperm", "aten::rand_like", "aten::randn_like", "aten::randint_like",
    "aten::bernoulli", "aten::multinomial", "aten::normal", "aten::native_dropout", "aten::normal_", "aten::uniform_",
    "aten::random_", "aten::bernoulli_", "aten::exponential_", "aten::resize_", "aten::set_", "aten::_pin_memory",
}  # fmt: skip
"""Results that mean nothing or are random."""
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default

SAME_ON_ALL = {"c10d::broadcast_", "c10d::allreduce_"}
"""Collectives after which a tensor is taken to hold what it held: other ranks have the same."""


class Values:
    """Answers, and a count of those that were only stated, by question and line of code."""

    def __init__(self) -> None:
        self.stated: Counter[tuple[str, str, str]] = Counter()

    # -- before an operator runs: questions that need values

    def before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The answer of an operator that asks for data, in a tuple; None: it is to run as usual."""
        answer = QUESTIONS.get(func)
        if answer is not None:
            found = answer(self, *args, **kwargs)
            return None if found is NotImplemented else (found,)
        if func is aten._to_copy.default or func is aten.copy_.default:
            return self._to_host(func, args, kwargs)
        return None

    def _to_host(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        if func is aten.copy_.default:
            target, source = args[0], args[1]
            if isinstance(target, FakeTensor) or not isinstance(source, FakeTensor):
                return None
            with no_dispatch():
                target.copy_(self.real(source, "copy to the host"))
            return (target,)
        device = kwargs.get("device")
        source = args[0]
        if device is None or torch.device(device).type != "cpu" or not isinstance(source, FakeTensor):
            return None
        if source.fake_device.type == "cpu" or source.numel() * source.element_size() > LARGEST_HOST_BYTES:
            return None
        with no_dispatch():
            real = self.real(source, "copy to the host")
            rest = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
            return (aten._to_copy.default(real, **rest),)

    def real(self, source: Any, question: str) -> torch.Tensor:
        """A host tensor of a device tensor's values; call with dispatch off."""
        values = known(source)
        if values is not None:
            return values.clone()
        mean = expected(source)
        if mean is None:
            mean = self.state(question, source.dtype)
        with torch.no_grad():
            return torch.full(tuple(source.shape), mean, dtype=source.dtype, device="cpu")

    def state(self, question: str, dtype: torch.dtype) -> Any:
        """What is answered where nothing is known; noted."""
        answer: Any = False if dtype == torch.bool else 1.0 if dtype.is_floating_point else 0
        self.stated[question, str(answer), asker()] += 1
        return answer

    def note(self, question: str, answer: str) -> None:
        """Note a policy that was followed."""
        self.stated[question, answer, asker()] += 1

    # -- after it: what is known of its results

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Carry known and expected values from an operator's arguments to its results."""
        schema = func._schema if isinstance(func, torch._ops.OpOverload) else None
        if schema is None:
            return
        tensors = list(_tensors(args, kwargs))
        if not tensors:
            if schema.name not in UNKNOWN_OPS and _small(out):
                self._compute(func, args, kwargs, out, None)
            return
        have = [known(t) if isinstance(t, FakeTensor) else t for t in tensors]
        if all(value is not None for value in have):
            if schema.name not in UNKNOWN_OPS and _small(out):
                self._compute(func, args, kwargs, out, tensors[0])
                return
        elif (
            have[0] is None and not schema.is_mutable and not any("_expected" in t.__dict__ for t in tensors)
        ):
            if func in EXPECTED:
                _expect(func, args, kwargs, out)
            return
        if schema.name not in SAME_ON_ALL:
            self._changed(func, args, kwargs, out, have)

    def _changed(self, func: Any, args: Any, kwargs: Any, out: Any, have: list[Any]) -> None:
        """Not all arguments are known: what is written isn't any more, what comes out may be expected."""
        if func is aten.copy_.default and (values := have[1]) is not None and whole(args[0]) and _small(out):
            with no_dispatch():
                remember(args[0], values.expand(args[0].shape).to(args[0].dtype, copy=True), None)
        elif func is UNSCALE:
            # All gradients are finite: found_inf stays 0, or GradScaler would leave out every step.
            for gradient in args[0]:
                self.forget(gradient)
        elif func._schema.is_mutable:
            forget(args, kwargs, func._schema)
        else:
            _expect(func, args, kwargs, out)

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any, first: Any) -> None:
        with no_dispatch():
            real_args = [_real(each) for each in args]
            real_kwargs = {k: (torch.device("cpu") if k == "device" else _real(v)) for k, v in kwargs.items()}
            try:
                with torch.no_grad():
                    result = func(*real_args, **real_kwargs)
            except (RuntimeError, IndexError, TypeError, NotImplementedError):
                if func._schema.is_mutable:
                    forget(args, kwargs, func._schema)
                return
        if isinstance(out, FakeTensor) and isinstance(result, torch.Tensor):
            if func._schema.is_mutable and out is first:
                return
            remember(out, result, first if func.is_view else None)
        elif isinstance(out, tuple | list) and isinstance(result, tuple | list):
            for one, value in zip(out, result, strict=False):
                if isinstance(one, FakeTensor) and isinstance(value, torch.Tensor):
                    remember(one, value, first if func.is_view else None)

    def forget(self, tensor: Any) -> None:
        """Something unknown is written into a tensor."""
        forget((tensor,), {}, aten.add_.Tensor._schema)

    def enter(self, mode: Any, each: Any) -> Any:
        """A host tensor as a fake one that knows its values; anything else as it is."""
        if not isinstance(each, torch.Tensor) or isinstance(each, FakeTensor):
            return each
        if each.layout is not torch.strided:
            raise RefusedError("sparse tensors aren't simulated")
        with no_dispatch():
            fake = FakeTensor(
                mode,
                torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta"),
                each.device,
            )
        if each.numel() <= LARGEST_KNOWN and each.device.type == "cpu":
            fake._known = Known(each.detach())  # type: ignore[attr-defined]
        return fake


def asker() -> str:
    """File and line of the innermost frame outside torch and this package."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/torch/" not in name and "/loadmaster/dryrun/" not in name and not name.startswith("<"):
            short = name.partition("site-packages/")[2] or name
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _tensors(args: Any, kwargs: Any) -> Iterator[Any]:
    for each in (*args, *kwargs.values()):
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            for one in each:
                if isinstance(one, torch.Tensor):
                    yield one


def _small(out: Any) -> bool:
    if isinstance(out, torch.Tensor):
        return out.numel() <= LARGEST_KNOWN
    return isinstance(out, tuple | list) and all(_small(one) for one in out)


def _real(each: Any) -> Any:
    if isinstance(each, FakeTensor):
        return known(each)
    if isinstance(each, list | tuple):
        return [_real(one) for one in each]
    if isinstance(each, torch.device):
        return torch.device("cpu")
    return each


def _expect(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    rule = EXPECTED.get(func)
    if rule is None:
        return
    mean = rule(expected, known, *args, **kwargs)
    if mean is None:
        return
    for one in out if isinstance(out, tuple | list) else (out,):
        if isinstance(one, FakeTensor):
            one._expected = mean  # type: ignore[attr-defined]
