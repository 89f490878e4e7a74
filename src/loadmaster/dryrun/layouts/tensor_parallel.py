"""Tensor parallel by the plan that a transformers model carries, with DTensor weights: column-wise in, row-wise out."""

from __future__ import annotations

import fnmatch
from typing import Any

from loadmaster.errors import UsageError


def apply(model: Any, mesh: Any) -> None:
    """Split a model of the meta device over the ranks of ``mesh``; raises UsageError where it has no plan."""
    plan = plan_of(model)
    try:
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        apply_plan(model, mesh, plan)
    else:
        apply_tensor_parallelism(model, mesh, plan)


def plan_of(model: Any) -> dict[str, str]:
    """The model's plan, one entry for each module or parameter: the style's name by path."""
    patterns = dict(getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {})
    names = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    found = {
        name: style
        for pattern, style in patterns.items()
        for name in names
        if fnmatch.fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")
    }
    for tied in getattr(model, "all_tied_weights_keys", None) or {}:
        # A head that is tied to the embedding stays with it.
        found.pop(tied.rpartition(".")[0], None)
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no tensor-parallel plan, so --tensor-parallel can't split it",
            hint="--strategy fsdp2 splits any model",
        )
    return found


def apply_plan(model: Any, mesh: Any, plan: dict[str, str]) -> None:
    """The same with torch's own styles, for versions of transformers that don't have it; raises UsageError for a style
    that torch has no equal of."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = {
        "colwise": lambda: ColwiseParallel(),
        "rowwise": lambda: RowwiseParallel(),
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
        "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    }
    unknown = sorted(set(plan.values()) - set(styles))
    if unknown:
        raise UsageError(f"{type(model).__name__}'s tensor-parallel plan has {unknown[0]!r}, which torch can't do")
    parallelize_module(model, mesh, {name: styles[style]() for name, style in plan.items()})
