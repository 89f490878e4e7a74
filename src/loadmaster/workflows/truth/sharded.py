"""Rows over several GPUs that a dry run can run: FSDP2 in plain PyTorch, by what the row's fields say."""

from __future__ import annotations

import re

from loadmaster.dryrun.layouts.describe import Parallel
from loadmaster.records import replace
from loadmaster.workflows.truth import words
from loadmaster.workflows.truth.mapping import Unmapped
from loadmaster.workflows.truth.rows import Row

EXPANDABLE = "expandable_segments:True"


def parallel_of(row: Row) -> Parallel | None:
    """How the row's job is split, None where it isn't a job of FSDP2; raises Unmapped for one that can't be run here."""
    said = row.parallel or {}
    text = str(said.get("fsdp", ""))
    if not text or row.kind != "train" or not row.gpus or row.gpus < 2:
        return None
    if "FSDP1" in text or "use_orig_params" in text or "torchtitan" not in row.framework.lower():
        raise Unmapped(f"{text}: only FSDP2 is run")
    for kind, name in (("pp", "pipeline"), ("ep", "expert"), ("tp", "tensor"), ("cp", "context")):
        if isinstance(said.get(kind), int) and said[kind] > 1:
            raise Unmapped(f"{name} parallel by torchtitan's own plan isn't run")
    if row.compile not in (None, False):
        raise Unmapped("what torch.compile makes of a step isn't run")
    compute = row.compute_dtype or ""
    if not compute.startswith("bfloat16"):
        raise Unmapped(f"products in {compute!r} aren't run")
    found = re.search(r"degree (\d+)", text, re.ASCII)
    degree = int(found.group(1)) if found else row.gpus
    reduce = "float32" if "fp32 reduce" in compute else None
    return Parallel(
        data_parallel=row.gpus,
        fsdp=degree,
        replicate=row.gpus // degree,
        param_dtype="bfloat16",
        reduce_dtype=reduce,
    )


def unsharded(row: Row) -> Row:
    """The row with weights as FSDP2 keeps them: float32 shards, whose products are FSDP2's affair."""
    stored = words.stored_format(row.weights_dtype).rest or "float32"
    return replace(row, weights_dtype=stored, compute_dtype=stored)


def conf_of(row: Row) -> str:
    """The allocator's settings that the row states."""
    return EXPANDABLE if "expandable segments" in (row.notes or "") else ""
