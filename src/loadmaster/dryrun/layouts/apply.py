"""A model on the meta device becomes what this rank of the job has of it, on the simulated device."""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.layouts import ddp, fsdp, groups, tensor_parallel
from loadmaster.dryrun.layouts.describe import Parallel, check_heads
from loadmaster.dryrun.layouts.run import Role


def wrap(session: Any, model: Any, parallel: Parallel, rank: int, *, name: str = "") -> Any:
    """What the job's launcher does on ``rank``: the process group and its mesh, tensor parallel by the model's own plan, then
    FSDP2 or DDP; the result is on the simulated device, its parameters tagged and named.

    ``model`` is on the meta device, with whatever the job changes in it (adapters, checkpointing) done. Raises BadValueError
    where the model can't be split like that.
    """
    check_heads(parallel, getattr(model, "config", None))
    if parallel.gpus == 1 and not parallel.offload:
        return session.device_module(model, name)
    groups.start(session._patches, session, parallel.gpus, rank)
    mesh = _mesh(parallel)
    if parallel.tensor > 1:
        tensor_parallel.apply(model, mesh["tp"])
    if parallel.data_parallel == 1 and not parallel.offload:
        tensor_parallel.replicate(model, mesh["tp"])
        return fsdp.materialise(session, model, name)
    if parallel.strategy == "ddp":
        return ddp.apply(session, model, mesh, parallel, name)
    return fsdp.apply(session, model, mesh, parallel, name)


def roles(parallel: Parallel, model: Any) -> list[Role]:
    """The kinds of ranks of a job: parameters are cut along their first dimension, so that where it doesn't divide, the last
    ranks have less than the first, or nothing. Of many kinds the first, a middle and the last are named.

    ``model`` may be on the meta device; it is not changed.
    """
    lengths = sorted({param.shape[0] for param in model.parameters() if param.dim()})
    kinds: dict[Any, list[int]] = {}
    for rank in range(parallel.gpus):
        shard, slot = rank // parallel.tensor % parallel.fsdp, rank % parallel.tensor
        kind = [
            (
                _part(whole, parallel.fsdp, shard),
                _part(_part(whole, parallel.tensor, slot), parallel.fsdp, shard),
            )
            for whole in lengths
        ]
        kinds.setdefault(tuple(kind), []).append(rank)
    found = list(kinds.values())
    if len(found) > 3:
        found = [found[0], sorted(each for middle in found[1:-1] for each in middle), found[-1]]
    if len(found) == 1:
        return [Role("every rank", tuple(found[0]))]
    return [Role(_name(tuple(ranks)), tuple(ranks)) for ranks in found]


def _part(length: int, shards: int, shard: int) -> int:
    """torch.chunk: pieces of the length rounded up, the last ones shorter or empty."""
    piece = -(-length // shards)
    return max(0, min(piece, length - piece * shard))


def _name(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    shown = ", ".join(map(str, ranks[:4]))
    return f"ranks {shown}" if len(ranks) <= 4 else f"ranks {shown} and {len(ranks) - 4} more"


def _mesh(parallel: Parallel) -> Any:
    """Dimensions that the job has, outermost first: ``dp_replicate``, ``dp_shard``, ``tp``."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = {"dp_replicate": parallel.replicate, "dp_shard": parallel.fsdp, "tp": parallel.tensor}
    needed = "dp_replicate" if parallel.strategy == "ddp" else "dp_shard"
    names = [each for each, size in sizes.items() if size > 1 or each == needed]
    with torch.device("cpu"):
        return init_device_mesh("cuda", tuple(sizes[each] for each in names), mesh_dim_names=tuple(names))
