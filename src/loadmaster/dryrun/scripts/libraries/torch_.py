"""torch: nothing is saved; of large files only shapes are loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from loadmaster.dryrun import freeform
from loadmaster.dryrun.scripts.adjustments import Adjustments
from loadmaster.dryrun.session import Session
from loadmaster.dryrun.values import LARGEST_HOST_BYTES


def _torch(module: Any, adjustments: Adjustments) -> None:
    adjustments.skip(module, "save", "torch.save")
    adjustments.patches.set(module, "load", _loader(module.load, adjustments.session))


def _checkpoint(module: Any, adjustments: Adjustments) -> None:
    adjustments.skip(module, "save", "torch.distributed.checkpoint.save")


def _tensorboard(module: Any, adjustments: Adjustments) -> None:
    class Nothing:
        """A writer that writes nothing."""

        def __init__(self, *_: Any, **__: Any) -> None:
            adjustments.skipped["TensorBoard's files"] += 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

    adjustments.patches.set(module, "SummaryWriter", Nothing)


def _loader(real: Any, session: Session) -> Callable[..., Any]:
    """torch.load: files up to 64 MiB with their data, since programs keep data sets so; larger ones as shapes."""

    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(file, str | os.PathLike)
        large = is_path and os.path.exists(file) and os.path.getsize(file) > LARGEST_HOST_BYTES
        places: dict[int, str] = {}

        def place(storage: Any, location: str) -> Any:
            wanted = _place(map_location, storage, location)
            found = storage if not large else torch.UntypedStorage(storage.nbytes(), device="meta")
            places[found._cdata] = wanted
            kept.append(found)
            return found

        kept: list[Any] = []
        if large:
            kwargs["mmap"] = True
        with _disable_current_modes():
            loaded = real(file, place, *args, **kwargs)
        return _placed(session, loaded, places, {})

    return load


def _place(map_location: Any, storage: Any, location: str) -> str:
    """Where the program wants a storage."""
    if map_location is None:
        return location
    if isinstance(map_location, dict):
        return str(map_location.get(location, location))
    if isinstance(map_location, str | torch.device):
        return str(map_location)
    moved = map_location(storage, location)
    return location if moved is None else str(moved.device)


def _placed(session: Session, loaded: Any, places: dict[int, str], memo: dict[int, Any]) -> Any:
    if isinstance(loaded, torch.Tensor):
        if id(loaded) not in memo:
            device = torch.device(places.get(loaded.untyped_storage()._cdata, "cpu"))
            memo[id(loaded)] = _tensor(session, loaded, device)
        return memo[id(loaded)]
    if isinstance(loaded, dict):
        for key, value in loaded.items():
            loaded[key] = _placed(session, value, places, memo)
        return loaded
    if isinstance(loaded, list):
        loaded[:] = [_placed(session, each, places, memo) for each in loaded]
        return loaded
    if type(loaded) is tuple:
        return tuple(_placed(session, each, places, memo) for each in loaded)
    if isinstance(loaded, torch.nn.Module):
        return loaded.to("cuda") if any(place.startswith("cuda") for place in places.values()) else loaded
    return loaded


def _tensor(session: Session, loaded: torch.Tensor, device: torch.device) -> Any:
    if loaded.device.type != "meta":
        return loaded if device.type != "cuda" else loaded.to(device)
    if device.type == "cuda":
        return session.device_tensor(loaded)
    return freeform.fake(session, loaded) if device.type == "cpu" else loaded


PATCHES = {
    "torch": _torch,
    "torch.distributed.checkpoint": _checkpoint,
    "torch.utils.tensorboard": _tensorboard,
}
