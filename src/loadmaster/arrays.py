"""What lets one formula serve a plain int and a NumPy array of jobs: +, -, *, // and these few helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Size = int | NDArray[np.int64]
else:
    Size = object


def maximum(a: Size, b: Size) -> Size:
    """The larger of two sizes, element by element for arrays. NumPy is touched only when an array is there."""
    if isinstance(a, int) and isinstance(b, int):
        return a if a > b else b
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Size, b: Size) -> Size:
    """The smaller of two sizes, element by element for arrays."""
    if isinstance(a, int) and isinstance(b, int):
        return a if a < b else b
    import numpy as np

    return np.minimum(a, b)


def rounded(size_bytes: Size, unit: int = 512) -> Size:
    """Up to a multiple of ``unit``, a power of two (512: the smallest block of PyTorch's CUDA caching allocator)."""
    return (size_bytes + (unit - 1)) & -unit


def ceil_div(a: Size, b: Size) -> Size:
    """Division rounded up."""
    return -(-a // b)


def next_power_of_2(a: Size) -> Size:
    """The smallest power of two that is at least ``a`` (triton.next_power_of_2)."""
    if isinstance(a, int):
        return 1 << max(a - 1, 0).bit_length()
    bits = a - 1
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> shift)
    return bits + 1


def where(condition: object, a: Size, b: Size) -> Size:
    """``a`` where the condition holds, else ``b``."""
    if isinstance(condition, bool):
        return a if condition else b
    import numpy as np

    return np.where(condition, a, b)  # type: ignore[call-overload,no-any-return]


def amount(size: Size) -> int:
    """A size as one int: itself, or the largest of an array."""
    return size if isinstance(size, int) else int(size.max())


def surely(condition: object) -> bool:
    """A condition as one bool: itself, or whether it holds for every element (jobs are grouped so that it is all or none)."""
    return condition if isinstance(condition, bool) else bool(condition.all())  # type: ignore[attr-defined]
