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

from loadmaster.dryrun.expected import EXPECTED

aten = torch.ops.aten
LARGEST_KNOWN = 65_536
"""Elements of tensors whose values are kept."""
LARGEST_HOST_BYTES = 64 * 2**20
"""Bytes of tensors that become real when they go to the host."""

UNKNOWN_OPS = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::rand",
    "aten::randn", "aten::randint", "aten::randperm", "aten::rand_like", "aten::randn_like", "aten::randint_like",
    "aten::bernoulli", "aten::multinomial", "aten::normal", "aten::native_dropout", "aten::normal_", "aten::uniform_",
    "aten::random_", "aten::bernoulli_", "aten::exponential_", "aten::resize_", "aten::set_", "aten::_pin_memory",
}  # fmt: skip
"""Results that mean nothing or are random."""
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale_.default
TO_HOST = (aten._to_copy.default,)


SAME_ON_ALL = {"c10d::broadcast_", "c10d::allreduce_"}
"""Collectives after which a tensor is taken to hold what it held: other ranks have the same."""


class Known:
    """The host's copy of a tensor; ``live`` is shared by all views of one storage and turns False with an unknown write."""

    __slots__ = ("live", "tensor")

    def __init__(self, tensor: torch.Tensor, live: list[bool] | None = None) -> None:
        self.tensor, self.live = tensor, live if live is not None else [True]


def known(tensor: Any) -> torch.Tensor | None:
    """The values of a tensor of the device, where they are known."""
    found = tensor.__dict__.get("_known")
    return found.tensor if found is not None and found.live[0] else None


def expected(tensor: Any) -> float | None:
    """What elements of a tensor are on average, where that can be said."""
    found: float | None = tensor.__dict__.get("_expected")
    if found is None and (values := known(tensor)) is not None and values.numel() and not values.is_complex():
        with no_dispatch():
            found = values.double().mean().item()
    return found


class Values:
    """Answers, and a count of those that were only stated, by question and line of code."""

    def __init__(self) -> None:
        self.stated: Counter[tuple[str, str, str]] = Counter()

    # -- before an operator runs: questions that need values

    def before(self, func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The answer of an operator that asks for data, in a tuple; None: it is to run as usual."""
        answer = _QUESTIONS.get(func)
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
        if schema.name in SAME_ON_ALL:
            return
        if func is aten.copy_.default and (values := have[1]) is not None and _whole(args[0]) and _small(out):
            with no_dispatch():
                _remember(args[0], values.expand(args[0].shape).to(args[0].dtype, copy=True), None)
        elif func is UNSCALE:
            for gradient in args[
                0
            ]:  # all finite: found_inf stays 0, or GradScaler would leave out every step
                self.forget(gradient)
        elif schema.is_mutable:
            _forget(args, kwargs, schema)
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
                    _forget(args, kwargs, func._schema)
                return
        if isinstance(out, FakeTensor) and isinstance(result, torch.Tensor):
            if func._schema.is_mutable and out is first:
                return
            _remember(out, result, first if func.is_view else None)
        elif isinstance(out, tuple | list) and isinstance(result, tuple | list):
            for one, value in zip(out, result, strict=False):
                if isinstance(one, FakeTensor) and isinstance(value, torch.Tensor):
                    _remember(one, value, first if func.is_view else None)

    def forget(self, tensor: Any) -> None:
        """Something unknown is written into a tensor."""
        _forget((tensor,), {}, aten.add_.Tensor._schema)

    def enter(self, mode: Any, each: Any) -> Any:
        """A host tensor as a fake one that knows its values; anything else as it is."""
        if not isinstance(each, torch.Tensor) or isinstance(each, FakeTensor):
            return each
        with no_dispatch():
            fake = FakeTensor(
                mode,
                torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta"),
                each.device,
            )
        if each.numel() <= LARGEST_KNOWN and each.device.type == "cpu":
            fake._known = Known(each.detach())  # type: ignore[attr-defined]
        return fake

    # -- questions

    def _item(self, tensor: Any) -> Any:
        values = known(tensor)
        if values is not None:
            with no_dispatch():
                return values.item()
        mean = expected(tensor)
        if mean is not None:
            return (
                bool(mean >= 0.5)
                if tensor.dtype == torch.bool
                else mean
                if tensor.dtype.is_floating_point
                else round(mean)
            )
        return self.state("value of a tensor", tensor.dtype)

    def _nonzero(self, tensor: Any) -> Any:
        """Indices of what isn't zero: known; else as many as expected; else all."""
        values = known(tensor)
        if values is not None:
            with no_dispatch():
                found = values.nonzero()
            out = torch.empty(tuple(found.shape), dtype=torch.long, device=tensor.device)
            _remember(out, found, None)
            return out
        mean = expected(tensor)
        total = tensor.numel()
        count = total if mean is None else min(total, max(0, round(total * min(mean, 1.0))))
        if mean is None or mean < 1:
            self.note(
                "which elements aren't zero", "all" if mean is None else f"{mean:.4g} of them, spread evenly"
            )
        out = torch.empty((count, tensor.dim()), dtype=torch.long, device=tensor.device)
        if count == total and tensor.dim() == 1 and total <= LARGEST_KNOWN:
            with no_dispatch():
                _remember(out, torch.arange(total).unsqueeze(1), None)
        return out

    def _equal(self, one: Any, other: Any) -> Any:
        if one.shape != other.shape:
            return False
        left, right = (known(t) if isinstance(t, FakeTensor) else t for t in (one, other))
        if left is not None and right is not None:
            with no_dispatch():
                return torch.equal(left, right)
        self.note("whether two tensors are equal", "True")
        return True

    def _index(self, tensor: Any, indices: Any, *rest: Any) -> Any:
        """Boolean masks become indices first, as the kernel does it."""
        if not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return NotImplemented
        found: list[Any] = []
        for index in indices:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                found.extend(index.nonzero().unbind(1))
            else:
                found.append(index)
        return aten.index.Tensor(tensor, found)

    def _index_put(self, tensor: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        if not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
            return NotImplemented
        # A mask of unknown density may not have as many places as there are values: nothing that lives depends on it.
        _forget((tensor,), {}, aten.index_put_.default._schema)
        return tensor

    def _masked_select(self, tensor: Any, mask: Any) -> Any:
        tensor, mask = torch.broadcast_tensors(tensor, mask)
        return aten.index.Tensor(tensor, list(mask.nonzero().unbind(1)))

    def _repeat_interleave(self, repeats: Any, output_size: int | None = None) -> Any:
        values = known(repeats)
        if values is not None:
            with no_dispatch():
                found = torch.repeat_interleave(values)
            out = torch.empty(tuple(found.shape), dtype=torch.long, device=repeats.device)
            _remember(out, found, None)
            return out
        if output_size is None:
            mean = expected(repeats)
            output_size = repeats.numel() if mean is None else round(repeats.numel() * mean)
            self.note("how often to repeat", f"{output_size} in all")
        return torch.empty((output_size,), dtype=torch.long, device=repeats.device)


def _of_known(operator: Any) -> Any:
    """An operator whose results' sizes follow from values, run where these are known."""

    def answer(_: Values, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        values = known(tensor) if isinstance(tensor, FakeTensor) else None
        if values is None:
            return NotImplemented
        with no_dispatch():
            found = operator(values, *args, **kwargs)
        made = []
        for one in found if isinstance(found, tuple) else (found,):
            out = torch.empty(tuple(one.shape), dtype=one.dtype, device=tensor.device)
            _remember(out, one, None)
            made.append(out)
        return tuple(made) if isinstance(found, tuple) else made[0]

    return answer


_QUESTIONS: dict[Any, Any] = {
    aten._local_scalar_dense.default: Values._item,
    aten.nonzero.default: Values._nonzero,
    aten.equal.default: Values._equal,
    aten.index.Tensor: Values._index,
    aten.index_put_.default: Values._index_put,
    aten.masked_select.default: Values._masked_select,
    aten.repeat_interleave.Tensor: Values._repeat_interleave,
    **{
        operator: _of_known(operator)
        for operator in (
            aten.unique_consecutive.default,
            aten._unique2.default,
            aten.unique_dim.default,
            aten.bincount.default,
        )
    },
}


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


def _whole(tensor: Any) -> bool:
    """Whether a tensor is all of its storage, so that writing it leaves nothing unknown."""
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def _remember(tensor: Any, values: torch.Tensor, base: Any) -> None:
    live = base.__dict__["_known"].live if base is not None and "_known" in base.__dict__ else None
    tensor._known = Known(values, live)


def _forget(args: Any, kwargs: Any, schema: Any) -> None:
    """Something unknown is written: nothing that shares the storage is known any more."""
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = (
            kwargs.get(argument.name)
            if argument.name in kwargs
            else args[place]
            if place < len(args)
            else None
        )
        for tensor in value if isinstance(value, list | tuple) else [value]:
            if isinstance(tensor, FakeTensor):
                found = tensor.__dict__.get("_known")
                if found is not None:
                    found.live[0] = False
                tensor.__dict__.pop("_expected", None)


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
