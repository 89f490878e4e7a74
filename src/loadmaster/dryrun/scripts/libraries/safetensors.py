"""safetensors: only headers are read, nothing is saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from loadmaster.dryrun import freeform
from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.scripts.adjustments import Adjustments
from loadmaster.dryrun.session import Session

LARGEST_HEADER_BYTES = 100_000_000
"""What safetensors itself reads at most (MAX_HEADER_SIZE)."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "U16": torch.uint16,
    "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
"""safetensors' own names of types (tensor.rs Dtype)."""


def header(path: Path) -> dict[str, Any]:
    """The header of a file: names with dtype, shape and offsets. Raises OSError, RefusedError."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER_BYTES:
            raise RefusedError(f"{path}: a safetensors header of {size:,} bytes is not read")
        found: dict[str, Any] = json.loads(file.read(size))
    return found


class Slice:
    """A tensor in a file, of which a part may be asked for."""

    def __init__(self, opened: Opened, name: str) -> None:
        self.opened, self.name = opened, name

    def get_shape(self) -> list[int]:
        """Its sizes."""
        return list(self.opened.entries[self.name]["shape"])

    def get_dtype(self) -> str:
        """Its type, as safetensors names it."""
        return str(self.opened.entries[self.name]["dtype"])

    def __getitem__(self, index: Any) -> Any:
        """A part, as a tensor of its own."""
        return self.opened.tensor(self.name, index)


class Opened:
    """safetensors.safe_open that reads the header only; tensors have shapes and no data."""

    def __init__(
        self, session: Session, path: Any, framework: str = "pt", device: Any = "cpu", **_: Any
    ) -> None:
        self.session, self.device = session, _device(device)
        self.entries = header(Path(path))
        self.about = self.entries.pop("__metadata__", None)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self.entries)

    def offset_keys(self) -> list[str]:
        """Names in the order of the file."""
        return sorted(self.entries, key=lambda name: self.entries[name]["data_offsets"][0])

    def metadata(self) -> Any:
        """What the file says of itself."""
        return self.about

    def get_slice(self, name: str) -> Slice:
        """A tensor of which a part may be asked for."""
        return Slice(self, name)

    def get_tensor(self, name: str) -> Any:
        """A tensor."""
        return self.tensor(name, ...)

    def tensor(self, name: str, index: Any) -> Any:
        """A part of a tensor, on the device that was asked for."""
        if name not in self.entries:
            from safetensors import SafetensorError

            raise SafetensorError(f"File does not contain tensor {name}")
        entry = self.entries[name]
        meta = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="meta")[index].contiguous()
        if self.device.type == "cuda":
            return self.session.device_tensor(meta)
        return meta if self.device.type == "meta" else freeform.fake(self.session, meta)


def _device(device: Any) -> torch.device:
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def _opener(session: Session) -> Any:
    class safe_open(Opened):  # noqa: N801 - the library's name, for programs that ask for it
        """The library's class, for this dry run."""

        def __init__(self, filename: Any, framework: str = "pt", device: Any = "cpu", **options: Any) -> None:
            super().__init__(session, filename, framework, device, **options)

    return safe_open


def _safetensors(module: Any, adjustments: Adjustments) -> None:
    adjustments.patches.set(module, "safe_open", _opener(adjustments.session))


def _torch(module: Any, adjustments: Adjustments) -> None:
    adjustments.patches.set(module, "safe_open", _opener(adjustments.session))
    for name in ("save_file", "save_model"):
        adjustments.skip(module, name, f"safetensors.torch.{name}")


def _user(module: Any, adjustments: Adjustments) -> None:
    """A module that has imported the library's names already."""
    for name in ("safe_open", "save_file", "safe_save_file"):
        if not hasattr(module, name):
            continue
        if name == "safe_open":
            adjustments.patches.set(module, name, _opener(adjustments.session))
        else:
            adjustments.skip(module, name, "safetensors.torch.save_file")


PATCHES = {
    "safetensors": _safetensors,
    "safetensors.torch": _torch,
    "transformers.modeling_utils": _user,
    "transformers.core_model_loading": _user,
    "accelerate.utils.modeling": _user,
    "accelerate.utils.other": _user,
    "peft.peft_model": _user,
    "peft.utils.save_and_load": _user,
}
