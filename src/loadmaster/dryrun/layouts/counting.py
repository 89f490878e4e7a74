"""What FSDP2, DDP and DTensor do besides operators, and what their blocks are.

DTensor works out shapes on tensors of the whole size: those are no memory. FSDP2's gathered parameters and its buffers for
gathering and reducing, and DDP's buckets, are the category ``gathered``; where gradients are views of such a buffer it is
theirs. DDP's C++ reducer runs as it is; three of its questions have no answer without NCCL and a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.tensors import Patches


def install(patches: Patches, session: Any) -> None:
    """Patch torch.distributed's libraries for the time of a session."""
    _dtensor(patches, session)
    _fsdp(patches, session)
    _ddp(patches, session)


def _dtensor(patches: Patches, session: Any) -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.tensor import _collective_utils, _decompositions, _sharding_prop

    propagator, mode = _sharding_prop.ShardingPropagator, session.mode
    name = "_propagate_tensor_meta_non_cached"
    real = getattr(propagator, name)

    def propagate(self: Any, schema: Any) -> Any:
        mode._depth += 1  # as inside an operator: nothing is counted
        try:
            return real(self, schema)
        finally:
            mode._depth -= 1

    patches.set(propagator, name, propagate)
    # It takes a fake mode for a compiler's tracing, and then keeps no results for the next call.
    for owner in (functional, _collective_utils, _decompositions, _sharding_prop):
        if hasattr(owner, "_are_we_tracing"):
            patches.set(owner, "_are_we_tracing", lambda: False)


def _fsdp(patches: Patches, session: Any) -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    tracker = session.tracker
    for owner, name in (
        (_fsdp_param_group, "foreach_all_gather"),
        (_fsdp_param_group, "foreach_all_gather_copy_out"),
        (_fsdp_param.FSDPParam, "init_all_gather_outputs"),
        (_fsdp_param.FSDPParam, "alloc_all_gather_outputs"),
        (_fsdp_param.FSDPParam, "to_sharded_post_forward"),
    ):
        patches.set(owner, name, gathering(tracker, getattr(owner, name)))
    reduce = gathering(tracker, _fsdp_param_group.foreach_reduce)  # type: ignore[attr-defined]

    def foreach_reduce(params: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
        for grad in grads:
            tracker.tag(grad, "gradients")
        found = reduce(params, grads, *args, **kwargs)
        for param in params:
            if param.sharded_param.grad is not None:
                tracker.tag(
                    param.sharded_param.grad, "gradients", session.watch.owners.get(id(param.sharded_param))
                )
        return found

    patches.set(_fsdp_param_group, "foreach_reduce", foreach_reduce)


def gathering(tracker: Any, real: Any) -> Any:
    """``real``, with every block that it takes (and that nobody has tagged) counted as gathered."""

    def call(*args: Any, **kwargs: Any) -> Any:
        first = len(tracker.trace.blocks)
        try:
            return real(*args, **kwargs)
        finally:
            for block in tracker.trace.blocks[first:]:
                if block.category is None:
                    block.category = "gathered"

    return call


def _ddp(patches: Patches, session: Any) -> None:
    from torch.nn.parallel import distributed

    ddp, tracker = distributed.DistributedDataParallel, session.tracker
    # Compares shapes with other ranks, of which there are none.
    patches.set(distributed, "_verify_param_shape_across_processes", lambda *_, **__: True)
    reducer, logger = torch._C._distributed_c10d.Reducer, torch._C._distributed_c10d.Logger
    patches.set(logger, "set_runtime_stats_and_log", lambda _: None)  # asks for CUDA events' times
    patches.set(reducer, "_rebuild_buckets", gathering(tracker, reducer._rebuild_buckets))
    patches.set(ddp, "__init__", gathering(tracker, ddp.__init__))
    before: Any = ddp._pre_forward

    def pre_forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not getattr(model, "_comm_hooks", True):
            # The fake group's work gives the reducer no result; this hook stands for the all-reduce in the bucket itself.
            model.register_comm_hook(None, _reduced)
        return before(model, *inputs, **kwargs)

    patches.set(ddp, "_pre_forward", pre_forward)


def _reduced(_: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_reduced.__annotations__.clear()  # DDP checks them, and knows none that are written as strings
