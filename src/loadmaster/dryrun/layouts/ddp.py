"""DistributedDataParallel: a copy on every rank; torch's own reducer makes its buckets."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.layouts.describe import Parallel


def apply(session: Any, model: Any, mesh: Any, parallel: Parallel, name: str = "") -> Any:
    """Put a model of the meta device on the simulated one and wrap it."""
    from torch.nn.parallel import DistributedDataParallel

    session.device_module(model, name)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[0],
        bucket_cap_mb=parallel.bucket_mb,
        gradient_as_bucket_view=parallel.bucket_view,
        static_graph=parallel.static_graph,
        process_group=mesh.get_group("dp_replicate"),
    )
    session.watch.name(wrapped, name)
    return wrapped
