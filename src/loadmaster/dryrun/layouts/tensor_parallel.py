"""Tensor parallel by the plan that a transformers model carries, with DTensor weights: column-wise in, row-wise out."""

from __future__ import annotations

import re
from typing import Any

import torch

from loadmaster.errors import UsageError


def apply(model: Any, mesh: Any) -> None:
    """Split a model of the meta device over the ranks of ``mesh``; raises UsageError where it has no plan."""
    plan = plan_of(model)
    try:
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        apply_plan(model, mesh, plan)
    else:
        parameters = {
            name: plan[name.rpartition(".")[0]]
            for name, _ in model.named_parameters()
            if name.rpartition(".")[0] in plan
        }
        apply_tensor_parallelism(model, mesh, {**parameters, **plan})
    if getattr(model, "all_tied_weights_keys", None):
        model.tie_weights(recompute_mapping=False)


def plan_of(model: Any) -> dict[str, str]:
    """The model's plan, one entry for each module (of experts also each parameter): the style's name by path."""
    patterns = dict(getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {})
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters()]
    found: dict[str, str] = {}
    for names in (parameters, modules):
        for pattern, style in patterns.items():
            expression = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
            found.update({name: style for name in names if expression.fullmatch(name)})
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

    whole = Replicate()
    gathered = {"output_layouts": whole}
    styles: dict[str, Any] = {
        "colwise": (ColwiseParallel, {}),
        "rowwise": (RowwiseParallel, {}),
        "colwise_gather_output": (ColwiseParallel, gathered),
        "colwise_rep": (ColwiseParallel, gathered),
        "embedding_rowwise": (RowwiseParallel, {"input_layouts": whole}),
        "rowwise_split_input": (RowwiseParallel, {"input_layouts": whole}),
    }
    unknown = sorted(set(plan.values()) - set(styles))
    if unknown:
        raise UsageError(
            f"{type(model).__name__}'s tensor-parallel plan has {unknown[0]!r}, which torch can't do"
        )
    made = {name: styles[style][0](**styles[style][1]) for name, style in plan.items()}
    parallelize_module(model, mesh, made)


def replicate(model: Any, mesh: Any) -> None:
    """Make what the plan leaves whole (norms) DTensors too, each rank with all of it: optimizers take no mixture. Only needed
    where FSDP2 doesn't do so; accelerate does the same (ReplicateParallel)."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    def enter(_: Any, args: Any) -> Any:
        return tuple(
            DTensor.from_local(each, mesh, [Replicate()], run_check=False) if _plain(each) else each
            for each in args
        )

    def leave(_: Any, __: Any, out: Any) -> Any:
        return out.to_local() if isinstance(out, DTensor) else out

    for module in model.modules():
        own = {key: param for key, param in module._parameters.items() if param is not None}
        if not own or any(isinstance(param, DTensor) for param in own.values()) or any(module.children()):
            continue
        for key, param in own.items():
            whole = distribute_tensor(param.detach(), mesh, [Replicate()], src_data_rank=None)
            module._parameters[key] = torch.nn.Parameter(whole, requires_grad=param.requires_grad)
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


def _plain(each: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(each, torch.Tensor) and not isinstance(each, DTensor) and each.is_floating_point()
