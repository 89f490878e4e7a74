"""What collectives answer in a group of one process: every rank is taken to hold what this one holds.

Tensors whose values are known (lengths and counts that come from the host) stay known: gathered they repeat, summed they are
multiplied. Objects repeat too. Anything else is as unknown after a collective as before.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun.known import Known, known
from loadmaster.dryrun.tensors import Patches


def install(patches: Patches) -> None:
    """Patch the collectives of torch.distributed for the time of a session."""
    for name, wrapper in _WRAPPERS.items():
        if hasattr(dist, name):
            both = wrapper(getattr(dist, name))
            for owner in (dist, c10d):
                patches.set(owner, name, both)


def _values(tensor: Any) -> torch.Tensor | None:
    return known(tensor) if isinstance(tensor, FakeTensor) else None


def _remember(tensor: Any, values: torch.Tensor) -> None:
    if isinstance(tensor, FakeTensor) and values.numel() == tensor.numel():
        with no_dispatch():
            tensor._known = Known(values.reshape(tensor.shape).to(tensor.dtype))  # type: ignore[attr-defined]


def _all_gather(real: Any) -> Any:
    def all_gather(tensor_list: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        values = _values(tensor)
        work = real(tensor_list, tensor, *args, **kwargs)
        if values is not None:
            for each in tensor_list:
                _remember(each, values)
        return work

    return all_gather


def _gather_single(real: Any) -> Any:
    def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        values = _values(input_tensor)
        work = real(output_tensor, input_tensor, *args, **kwargs)
        if values is not None:
            with no_dispatch():
                times = output_tensor.numel() // max(1, values.numel())
                repeated = values.reshape(-1).repeat(times)
            _remember(output_tensor, repeated)
        return work

    return all_gather_into_tensor


def _all_reduce(real: Any) -> Any:
    def all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        values = _values(tensor)
        work = real(tensor, op, group, async_op)
        if values is not None:
            with no_dispatch():
                _remember(tensor, values * dist.get_world_size(group) if op == dist.ReduceOp.SUM else values)
        return Done(tensor) if async_op else work

    return all_reduce


class Done:
    """Work that is done: ``wait`` returns at once, the future holds the tensor (FakeProcessGroup's holds nothing, which
    communication hooks of DDP can't use)."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def wait(self, timeout: Any = None) -> bool:
        """It is done."""
        return True

    def is_completed(self) -> bool:
        """It is done."""
        return True

    def get_future(self) -> Any:
        """A future that holds the tensor."""
        future: Any = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def _all_gather_object(real: Any) -> Any:
    def all_gather_object(object_list: Any, obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    return all_gather_object


def _gather_object(real: Any) -> Any:
    def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    return gather_object


def _broadcast_object_list(real: Any) -> Any:
    def broadcast_object_list(object_list: Any, *_: Any, **__: Any) -> None:
        """This rank's own objects stand for the source's."""

    return broadcast_object_list


def _scatter_object_list(real: Any) -> Any:
    def scatter_object_list(
        scatter_object_output_list: Any, scatter_object_input_list: Any = None, *_: Any, **__: Any
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[dist.get_rank()]

    return scatter_object_list


def _barrier(real: Any) -> Any:
    def barrier(*_: Any, async_op: bool = False, **__: Any) -> Any:
        return Done(None) if async_op else None

    return barrier


_WRAPPERS = {
    "all_gather": _all_gather,
    "all_gather_into_tensor": _gather_single,
    "all_gather_single": _gather_single,
    "all_reduce": _all_reduce,
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "scatter_object_list": _scatter_object_list,
    "barrier": _barrier,
    "monitored_barrier": _barrier,
}
