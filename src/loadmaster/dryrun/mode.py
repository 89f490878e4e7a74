"""The mode under which operators on the simulated device run: shapes only, every new storage counted, host tensors real.

FakeTensorMode works out what an operator's outputs look like; this subclass leaves operators on host tensors alone, counts
what the outermost operator makes (what a decomposition makes on the way isn't there on a GPU, which has a kernel for it),
and answers what only a device with data could.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from loadmaster.dryrun import accumulation, assume, kernels
from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.recipes import Recipes
from loadmaster.dryrun.tracker import Tracker
from loadmaster.dryrun.values import Values

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
PINNED = torch.ops.aten.is_pinned.default
CUDA = torch.device("cuda:0")


@cache
def _is_wrapper(kind: type) -> bool:
    """Whether tensors of this class are made of other tensors: DTensor."""
    return hasattr(kind, "__tensor_flatten__") and not issubclass(kind, FakeTensor)


class CudaMode(FakeTensorMode):
    """Fake tensors on a CUDA device whose blocks are counted by ``tracker`` and whose values come from ``values``."""

    def __init__(self, tracker: Tracker, values: Values) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.tracker, self.values = tracker, values
        self.operators = 0
        self.replaced = dict(kernels.REPLACED)
        """Operators that run as something else."""
        self._threads = threading.local()
        self.recipes = Recipes(self)
        self.assumptions: Mapping[str, assume.Assumption] = {}
        """By name, what operators without a fake kernel return."""
        self.fakes_host: Callable[..., bool] = lambda *_: False
        """Whether an operator that makes a host tensor is to make one without data."""

    @property
    def _depth(self) -> int:
        """Operators under way inside one another, in this thread: a data loader's runs beside the program's."""
        found: int = self._threads.__dict__.get("depth", 0)
        return found

    @_depth.setter
    def _depth(self, depth: int) -> None:
        self._threads.depth = depth

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Operators without a tensor of the device, and without its name, are the host's own; those of tensors made of others
        (DTensor) are theirs."""
        kwargs = kwargs or {}
        if any(_is_wrapper(each) for each in types):
            return NotImplemented
        if (
            func is not DEVICE
            and not self._depth
            and not self._simulated(args, kwargs)
            and not self.fakes_host(func, args, kwargs)
        ):
            if func is PINNED:
                return True  # DDP's reducer asks it of its own
            if kwargs.get("pin_memory"):
                kwargs = {**kwargs, "pin_memory": False}  # only a CUDA build can pin
            return func(*args, **kwargs)
        return self.dispatch(func, types, args, kwargs)

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """One operator; also called by fake tensors themselves where this mode is off (autograd's threads)."""
        if func is DEVICE:
            return args[0].fake_device
        kwargs = kwargs or {}
        if self._depth:
            return super().dispatch(func, types, args, kwargs)
        replaced = self.replaced.get(func)
        if replaced is not None:
            with self:
                return replaced(*args, **kwargs)
        if kernels.is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        self.operators += 1
        if kwargs:
            _only_one(kwargs.get("device"))
        if (func is accumulation.ADD and accumulation.in_place(args, kwargs, _OWN)) or self._into_zeros(
            func, args
        ):
            self.values.forget(args[0])
            return args[0]
        known = self.values.before(func, args, kwargs)
        if known is not None:
            return known[0]
        args, kwargs = self._without_host(func, args, kwargs)
        tensors: list[Any] = []
        key = self.recipes.key(func, args, kwargs, tensors)
        recipe = self.recipes.known.get(key) if key is not None else None
        if recipe is not None:
            out = self.recipes.make(recipe, tensors)
            self._count(func, args, kwargs, out)
            self.values.after(func, args, kwargs, out)
            return out
        self._depth += 1
        try:
            out = super().dispatch(func, types, args, kwargs)
        except (RuntimeError, NotImplementedError) as error:
            out = assume.stand_in(self, func, args, kwargs, error)
        finally:
            self._depth -= 1
        if out is not NotImplemented:
            if key is not None and key not in self.recipes.known:
                self.recipes.learn(key, tensors, out)
            self._count(func, args, kwargs, out)
            self.values.after(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        tracker = self.tracker
        name = func._schema.name[6:] if func.namespace == "aten" else func._schema.name
        if func in kernels.MATMULS:
            tracker.multiplied(name)
        if isinstance(out, FakeTensor):
            if out.fake_device.type == "cuda":
                tracker.see(out, name)
        elif isinstance(out, tuple | list):
            for each in out:
                if isinstance(each, FakeTensor) and each.fake_device.type == "cuda":
                    tracker.see(each, name)
        scratch = kernels.SCRATCH.get(func)
        if scratch is not None:
            tracker.scratch(scratch(args, kwargs, out[0] if isinstance(out, tuple) else out), name)

    def _into_zeros(self, func: Any, args: Sequence[Any]) -> bool:
        """Whether a backward formula writes into zeros that it has just made."""
        if func not in accumulation.INTO_ZEROS or not isinstance(args[0], FakeTensor):
            return False
        block = self.tracker.blocks.get(args[0].untyped_storage()._cdata)
        made = (
            block is not None
            and "zeros" in block.op
            and block.phase == self.tracker.place.phase == "backward"
        )
        return made and accumulation.called_by_engine(_OWN)

    def _simulated(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        for each in args:
            if isinstance(each, FakeTensor):
                return True
            if isinstance(each, list | tuple) and any(isinstance(one, FakeTensor) for one in each):
                return True
        if not kwargs:
            return False
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return True
        return any(isinstance(each, FakeTensor) for each in kwargs.values())

    def _without_host(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Host tensors among the arguments as fake ones, so that torch folds no constants of them."""
        if any(isinstance(each, torch.Tensor) and not isinstance(each, FakeTensor) for each in args):
            args = tuple(self.values.enter(self, each) for each in args)
        elif any(isinstance(each, list | tuple) for each in args):
            _on_one_device(func, args)
            args = tuple(
                [self.values.enter(self, one) for one in each] if isinstance(each, list | tuple) else each
                for each in args
            )
        if any(
            isinstance(each, torch.Tensor) and not isinstance(each, FakeTensor) for each in kwargs.values()
        ):
            kwargs = {name: self.values.enter(self, each) for name, each in kwargs.items()}
        return args, kwargs


_OWN = frozenset({__file__})


def _only_one(device: Any) -> None:
    """Refuse a second GPU: it would take memory that is counted for the first."""
    if device is not None and (found := torch.device(device)).type == "cuda" and found.index:
        raise RefusedError(f"{found}: this dry run simulates one GPU, cuda:0")


def _on_one_device(func: Any, args: Sequence[Any]) -> None:
    """Foreach kernels work on tensors of one device, but fake ones don't say so: an optimizer with states on the host would need
    less memory than any that runs. Copies may cross devices, and scalars come from the host."""
    name = func._schema.name
    if not name.startswith("aten::_foreach_") or name.startswith("aten::_foreach_copy"):
        return
    for group in zip(*(each for each in args if isinstance(each, list | tuple)), strict=False):
        found = {str(each.device) for each in group if isinstance(each, torch.Tensor) and each.dim()}
        if len(found) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {' and '.join(sorted(found))}!"
            )


# TorchDispatchMode wraps the method so that torch.compile leaves it alone, at a fifth of a dry run's time; here nothing compiles.
CudaMode.__torch_dispatch__ = CudaMode.__torch_dispatch__.__wrapped__  # type: ignore[method-assign, attr-defined]
