"""The process group of a session: torch's fake one, in which one process is one rank of many and collectives move nothing.

Installed once per session and idle until the program asks for a group: ``init_process_group`` with any backend then makes the
fake group of the world size that was passed, or that torchrun put into the environment, and what DTensor, FSDP2 and DDP
need to be counted is patched (``counting``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from loadmaster.dryrun.layouts import collectives
from loadmaster.dryrun.tensors import Patches


def install(patches: Patches, session: Any) -> None:
    """Make ``torch.distributed.init_process_group`` give the fake group; does nothing where torch was built without it."""
    if not dist.is_available():
        return
    real = dist.init_process_group

    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        world = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        start(patches, session, world, own, real)
        if world > 1:
            session.notes.append(
                f"torch.distributed: rank {own} of {world} is simulated; collectives take their memory and move nothing"
            )

    from torch.distributed import device_mesh
    from torch.distributed import distributed_c10d as c10d

    new_group = _without_backend(dist.new_group)
    for owner in (dist, c10d, device_mesh):
        patches.set(owner, "init_process_group", init_process_group)
        patches.set(owner, "new_group", new_group)
    for name in ("is_nccl_available", "is_gloo_available"):
        for owner in (dist, c10d):
            patches.set(owner, name, lambda: True)


def start(
    patches: Patches, session: Any, world: int, rank: int, init: Callable[..., None] | None = None
) -> None:
    """Make this process rank ``rank`` of ``world`` until the session ends."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from loadmaster.dryrun.layouts import counting

    if init is None:
        init = dist.init_process_group
        if init.__module__ == __name__:
            init(world_size=world, rank=rank)
            return
    patches.later(_end)
    collectives.install(patches)
    counting.install(patches, session)
    init("fake", store=FakeStore(), world_size=world, rank=rank)


def _end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _without_backend(real: Any) -> Any:
    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        kwargs.pop("device_id", None)
        return real(ranks, timeout, None, None, *args, **kwargs)

    return new_group
