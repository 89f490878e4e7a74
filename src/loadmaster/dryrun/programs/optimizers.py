"""Optimizers of a Job on trained parameters: torch's and transformers' own, stand-ins for other packages' (``states``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from loadmaster.dryrun.programs import adapters, states
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

Make = Callable[[list[Any]], Any]


def maker(base: Any, job: Job) -> Make:
    """A function that makes the job's optimizer for a list of parameters; ``base`` is the model they are of."""
    name, how = job.optimizer.name, job.optimizer.implementation
    if name in _TORCH:
        cls, options = _TORCH[name]
        kinds: dict[str, Any] = {"foreach": how == "foreach"}
        if how == "fused":
            kinds = {"fused": True}
        return lambda params: getattr(torch.optim, cls)(params, **options, **kinds)
    if name in _BITSANDBYTES and how == "fused":
        wide = tables(base) if job.facts.wide_embedding_states else set()
        return lambda params: states.Bitsandbytes(params, wide=wide, **_BITSANDBYTES[name])
    if name in _OTHERS:
        return _OTHERS[name](base, job)
    raise BadValueError("optimizer", name, "another one in a dry run, which has no stand-in for it")


_TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "sgd": ("SGD", {}),
    "sgdm": ("SGD", {"momentum": 0.9}),
    "adagrad": ("Adagrad", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "rmsprop": ("RMSprop", {}),
    "torch_adafactor": ("Adafactor", {}),
}
_BITSANDBYTES: dict[str, dict[str, Any]] = {
    "adamw_8bit": {"moments": 2, "bits": 8},
    "paged_adamw": {"moments": 2, "bits": 32, "paged": True},
    "paged_adamw_8bit": {"moments": 2, "bits": 8, "paged": True},
    "lion": {"moments": 1, "bits": 32},
    "lion_8bit": {"moments": 1, "bits": 8},
    "ademamix": {"moments": 2, "bits": 32, "stacked": True},
}


def tables(base: Any) -> set[int]:
    """Ids of token tables: transformers' Trainer lets bitsandbytes keep them in 32 bits."""
    return {id(m.weight) for m in base.modules() if isinstance(m, torch.nn.Embedding)}


def hidden(base: Any) -> set[int]:
    """Ids of the matrices of linear layers inside the network: neither token table nor head."""
    head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
    outside = tables(base) | ({id(head.weight)} if head is not None else set())
    return {
        id(m.weight)
        for m in adapters.text_tower(base).modules()
        if isinstance(m, torch.nn.Linear) and m.weight.dim() == 2 and id(m.weight) not in outside
    }


def _lion(base: Any, job: Job) -> Make:
    return states.Lion


def _sophia(base: Any, job: Job) -> Make:
    return states.Sophia


def _torchao(bits: int, block: int) -> Callable[[Any, Job], Make]:
    return lambda base, job: lambda params: states.Torchao(params, bits=bits, block=block)


def _adafactor(base: Any, job: Job) -> Make:
    from transformers import optimization

    cls: Any = optimization.Adafactor
    return lambda params: cls(params, scale_parameter=False, relative_step=False, lr=1e-3)


def _galore(base: Any, job: Job) -> Make:
    from loadmaster.jobs.optimizers.galore_adamw import RANK

    rank, matrices = job.optimizer.rank or RANK, hidden(base)
    return lambda params: states.Galore(params, rank=rank, projected=matrices)


def _muon(base: Any, job: Job) -> Make:
    matrices = hidden(base)

    def make(params: list[Any]) -> Any:
        by_muon = [p for p in params if id(p) in matrices]
        rest = [p for p in params if id(p) not in matrices]
        both = [torch.optim.Muon(by_muon)] if by_muon else []
        return Several([*both, *([torch.optim.AdamW(rest, foreach=True)] if rest else [])])

    return make


_OTHERS: dict[str, Callable[[Any, Job], Make]] = {
    "lion": _lion,
    "sophia": _sophia,
    "adamw_4bit": _torchao(4, 128),
    "adamw_fp8": _torchao(8, 256),
    "adafactor": _adafactor,
    "galore_adamw": _galore,
    "muon": _muon,
}


class Several:
    """Optimizers that step one after the other."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state = {param: state for part in parts for param, state in part.state.items()}

    def step(self) -> None:
        """All of them."""
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """All of them."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)
