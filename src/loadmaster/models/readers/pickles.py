"""Files that only unpickling could read: refused, because unpickling runs whatever code is in them."""

from __future__ import annotations

from pathlib import Path

from loadmaster.errors import BadFileError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def is_pickle(start: bytes) -> bool:
    """Whether a file's first bytes are a pickle's (protocol 2 to 5) or those of the archive that torch.save makes."""
    return start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))


def refuse_pickle(path: Path) -> BadFileError:
    """The error for a file that torch.load would unpickle: unpickling runs whatever code is in it."""
    return BadFileError(
        path,
        "is a pickle, which can run code when read, so it is not read",
        hint="use its safetensors version (headers are enough), its config.json, or --params with its size",
    )
