"""What a tensor file's header says: names, formats, shapes and sizes, never a tensor's bytes."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable
from math import prod
from pathlib import Path

from loadmaster.errors import BadFileError
from loadmaster.models.spec import Stored
from loadmaster.records import Record

PLAIN = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"})
"""Formats whose tensors hold one parameter a value; integer tensors may pack several."""
DIMENSION_LIMIT = 2**48
"""Largest axis that is believed: above it the product of a shape is absurd for any machine."""


class Stub(Record, kw_only=True):
    """One stored tensor: its name, number format, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def values(self) -> int:
        """Values as the shape says them."""
        return prod(self.shape)


class TensorFile(Record, kw_only=True):
    """The tensors of one file and the file's size on disk."""

    path: str
    size_bytes: int
    stubs: tuple[Stub, ...]


def stored(files: Iterable[TensorFile]) -> Stored:
    """Bytes of all tensors by format; parameters only where no format packs several in a value."""
    files = tuple(files)
    by_dtype: Counter[str] = Counter()
    values = 0
    packed = False
    for file in files:
        for stub in file.stubs:
            by_dtype[stub.dtype] += stub.size_bytes
            values += stub.values
            packed = packed or (stub.dtype not in PLAIN and stub.dtype.startswith(("int", "uint", "float4")))
    return Stored(
        total_bytes=sum(by_dtype.values()),
        dtypes=tuple(sorted(by_dtype.items())),
        largest_file_bytes=max((file.size_bytes for file in files), default=0),
        files=len(files),
        parameters=None if packed else values,
    )


def why_not(path: Path) -> str:
    """Why a path isn't a regular file: nothing there, something else, or a link that leads nowhere or in a circle."""
    if path.exists():
        return "is not a regular file"
    if not path.is_symlink():
        return "no such file"
    try:
        path.resolve(strict=True)
    except RuntimeError:  # Python 3.12 and older
        return "is a link that leads in a circle"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "is a link that leads in a circle"
    return "is a link to something that isn't there"


def file_size(path: Path) -> int:
    """Bytes of a regular file; raises BadFileError for anything else."""
    try:
        if not path.is_file():
            raise BadFileError(path, why_not(path))
        return path.stat().st_size
    except OSError as error:
        raise BadFileError(path, f"cannot be read ({error.strerror or error})") from None


def shape_of(path: object, name: str, found: object) -> tuple[int, ...]:
    """A stored shape, checked: a short list of whole numbers that aren't negative or absurd."""
    if not isinstance(found, list) or len(found) > 16:
        raise BadFileError(path, f"tensor {name[:80]!r} has no shape")
    for side in found:
        if type(side) is not int or not 0 <= side <= DIMENSION_LIMIT:
            raise BadFileError(path, f"tensor {name[:80]!r} has an impossible shape")
    return tuple(found)
