"""From a batch to a loss: the model's own, or one of the job's other ways to it."""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.programs.batches import Batch, arguments
from loadmaster.jobs.job import Job


class Own:
    """transformers' own loss of a model's class (``hf``)."""

    def __init__(self, model: Any, base: Any) -> None:
        self.model, self.base = model, base
        self.names = arguments(base)

    def __call__(self, batch: Batch, cache: bool) -> tuple[Any, Any]:
        """Outputs and loss of a training batch; ``cache``: the loop left use_cache on."""
        outputs = self.model(**batch, **self.cached(cache))
        return outputs, loss_of(outputs)

    def cached(self, wanted: bool) -> dict[str, bool]:
        """Trainer turns use_cache off in training."""
        return {"use_cache": wanted} if "use_cache" in self.names else {}

    def evaluate(self, batch: Batch) -> Any:
        """Outputs of an evaluation batch."""
        return self.model(**batch, **self.cached(True))


def loss_of(outputs: Any) -> Any:
    """The loss in a model's outputs; the sum of the first output where it has none."""
    found = getattr(outputs, "loss", None)
    if found is not None:
        return found
    first = outputs[0] if not isinstance(outputs, torch.Tensor) else outputs
    return first.float().sum()


def prepare(model: Any, base: Any, job: Job) -> Own:
    """The way from batch to loss that the job names."""
    return Own(model, base)
