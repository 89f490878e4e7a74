"""FSDP2 as accelerate (fsdp_utils.py fsdp2_prepare_model, 1.15) and torchtitan apply it: ``fully_shard`` on every repeated layer,
on the embedding, on the last norm with the head, which keep what they gathered for backward, and on the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun.layouts.describe import Parallel


def apply(session: Any, model: Any, mesh: Any, parallel: Parallel, name: str = "") -> Any:
    """Shard a model of the meta device and put this rank's shards on the simulated device, or in host memory."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    names = ("dp_replicate", "dp_shard") if parallel.replicate > 1 else ("dp_shard",)
    options: dict[str, Any] = {"mesh": mesh[names] if len(names) > 1 else mesh["dp_shard"]}
    if parallel.param_dtype or parallel.reduce_dtype:
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=_dtype(parallel.param_dtype), reduce_dtype=_dtype(parallel.reduce_dtype)
        )
    if parallel.offload:
        options["offload_policy"] = CPUOffloadPolicy()
    for layer in layers(model):
        fully_shard(layer, reshard_after_forward=parallel.reshard, **options)
    first, last = ends(model)
    if first is not None:
        fully_shard(first, reshard_after_forward=parallel.reshard, **options)
    if last:
        fully_shard(last, reshard_after_forward=False, **options)
    fully_shard(model, **options)
    return materialise(session, model, name, offload=parallel.offload)


def layers(model: Any) -> Iterator[Any]:
    """Modules that are sharded on their own: those the model names as not to be split (accelerate's TRANSFORMER_BASED_WRAP),
    else the members of its lists of equal modules."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    if not kinds:
        counts: Counter[str] = Counter()
        for module in model.modules():
            if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
                counts.update(type(each).__name__ for each in module)
        kinds = {kind for kind, count in counts.items() if count > 1}
    taken: set[int] = set()
    for module in model.modules():
        if type(module).__name__ not in kinds or module is model or id(module) in taken:
            continue
        if any(True for _ in module.parameters()):
            taken.update(id(each) for each in module.modules())
            yield module


def ends(model: Any) -> tuple[Any, list[Any]]:
    """A transformers model's embedding, and its last norm and head, which the tied embedding joins."""
    from torch.distributed.fsdp import FSDPModule

    first, head = (getattr(model, f"get_{end}_embeddings", lambda: None)() for end in ("input", "output"))
    weight = getattr(first, "weight", None)
    tied = weight is not None and weight is getattr(head, "weight", None)
    last = [_last_norm(model), *([first] if tied else []), head]
    # What is in a layer's unit already stays there.
    fresh = [each for each in last if each is not None and not isinstance(each, FSDPModule)]
    return (None if tied or isinstance(first, FSDPModule) else first), fresh


def _last_norm(model: Any) -> Any:
    prefix = getattr(model, "base_model_prefix", None)
    base = getattr(model, prefix, None) if prefix else None
    found = None
    for _, module in base.named_children() if isinstance(base, torch.nn.Module) else ():
        if "Norm" in type(module).__name__:
            found = module
    return found


def materialise(session: Any, model: Any, name: str = "", *, offload: bool = False) -> Any:
    """Shards of the meta device on the simulated one; with ``offload`` on the host, where they cost the dry run nothing."""

    def made(tensor: Any) -> Any:
        local = getattr(tensor, "_local_tensor", None)
        if local is None or not local.is_meta:
            return tensor
        with torch.no_grad():
            return torch.empty_like(tensor, device="cuda") if not offload else _on_host(session, tensor)

    model._apply(made)
    return session.device_module(model, name)


def _on_host(session: Any, tensor: Any) -> Any:
    from torch.distributed.tensor import DTensor

    local = tensor._local_tensor
    with no_dispatch():
        meta = torch.empty_strided(local.shape, local.stride(), dtype=local.dtype, device="meta")
        fake = FakeTensor(session.mode, meta, torch.device("cpu"))
    return DTensor(fake, tensor._spec, requires_grad=False)  # from_local would move it to the mesh's device


def _dtype(name: str | None) -> torch.dtype | None:
    found: torch.dtype | None = getattr(torch, name) if name else None
    return found
