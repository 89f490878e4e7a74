"""Programs that people bring: ``build()`` in a file or module gives a model, a batch, and maybe a loss and an optimizer."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError, LoadmasterError, UsageError

PARTS = ("model", "batch", "loss", "optimizer")
CONTRACT = (
    "a factory returns model and batch, maybe loss and optimizer, in a tuple in this order or in a dict"
)


def find(source: str) -> Callable[[], Any]:
    """The function that ``pkg.module:factory`` or ``file.py`` (its ``build``; ``file.py:name``) names. The file's code runs."""
    place, _, name = source.rpartition(":") if ":" in source else (source, "", "build")
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise BadFileError(place, "there is no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise UsageError(f"{place} can't be imported ({error})") from None
    found = getattr(module, name or "build", None)
    if not callable(found):
        raise UsageError(f"{place} has no function {name or 'build'}", hint=CONTRACT)
    return found  # type: ignore[no-any-return]


class Program:
    """What a factory returned, in parts."""

    def __init__(self, made: Any, source: str) -> None:
        import torch

        parts = dict(made) if isinstance(made, Mapping) else {}
        if isinstance(made, tuple) and len(made) <= len(PARTS):
            parts = dict(zip(PARTS, made, strict=False))
        known = {"model", "batch"} <= set(parts) <= set(PARTS)
        if not known or not isinstance(parts["model"], torch.nn.Module):
            raise UsageError(f"{source}: {CONTRACT}")
        self.model, self.batch = parts["model"], parts["batch"]
        self.loss, self.optimizer = parts.get("loss"), parts.get("optimizer")

    def onto(self, session: Any) -> None:
        """The model and its batch go to the device, from the host or the meta device."""
        session.device_module(self.model)
        self.model.to("cuda")
        session.watch.name(self.model)
        self.batch = _moved(self.batch, session.tracker)
        if self.optimizer is None:
            import torch

            trained = [param for param in self.model.parameters() if param.requires_grad]
            self.optimizer = torch.optim.AdamW(trained) if trained else None
        elif isinstance(self.optimizer, type) or not hasattr(self.optimizer, "step"):
            self.optimizer = self.optimizer(self.model.parameters())

    def step(self) -> None:
        """Forward, loss, backward, optimizer, as a plain loop writes it."""
        outputs = call(self.model, self.batch)
        loss = loss_of(outputs) if self.loss is None else _judged(self.loss, outputs, self.batch)
        del outputs
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)


def _judged(loss: Any, outputs: Any, batch: Any) -> Any:
    """A loss takes the outputs, or the outputs and the batch."""
    takes = [
        each
        for each in inspect.signature(loss).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return loss(outputs, batch) if len(takes) > 1 else loss(outputs)


def call(model: Any, batch: Any) -> Any:
    """A mapping as keyword arguments, a tuple or list as positional ones, anything else as the one argument."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def loss_of(outputs: Any) -> Any:
    """The loss that a model returns itself; a tensor without one is summed."""
    import torch

    found = getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, Mapping):
        found = outputs.get("loss")
    if found is not None:
        return found
    first = outputs[0] if isinstance(outputs, tuple | list) else outputs
    if not isinstance(first, torch.Tensor):
        raise LoadmasterError(
            "the model returns no loss; let the factory return one as its third part: loss(outputs)"
        )
    return first if first.dim() == 0 else first.float().sum()


def _moved(batch: Any, tracker: Any) -> Any:
    import torch

    if isinstance(batch, torch.Tensor):
        if batch.device.type == "meta":
            batch = torch.empty(batch.shape, dtype=batch.dtype, device="cuda")
        batch = batch.to("cuda")
        tracker.tag(batch, "inputs")
        return batch
    if isinstance(batch, Mapping):
        return {name: _moved(value, tracker) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(value, tracker) for value in batch)
    return batch
