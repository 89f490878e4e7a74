"""What optimizers are told of a trained tensor, and the bytes of a step that is written as a loop in Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadmaster.arrays import Size, maximum, rounded
from loadmaster.dtypes import itemsize

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Trained:
    """``count`` equal trained tensors of ``elements`` values with these ``sides``, in ``dtype``, the format the optimizer
    works in. ``hidden``: the matrix of a linear layer inside the network, neither token table nor head."""

    elements: Size
    dtype: str
    sides: tuple[Size, ...] = ()
    count: int = 1
    hidden: bool = False

    @property
    def size_bytes(self) -> Size:
        """Bytes of one copy, as the allocator rounds them."""
        return rounded(self.elements * itemsize(self.dtype))

    @property
    def factors(self) -> tuple[Size, Size] | None:
        """Values of the row and the column factor over the last two sides; None for a vector."""
        if len(self.sides) < 2:
            return None
        return self.elements // self.sides[-1], self.elements // self.sides[-2]


def moments(tensor: Trained, number: int) -> tuple[Size, ...]:
    """``number`` tensors like the parameter (zeros_like)."""
    return (tensor.elements * itemsize(tensor.dtype),) * number


def counter(implementation: str) -> tuple[Size, ...]:
    """Fused implementations keep the step counter, a float32, on the device (torch/optim: ``capturable`` or ``fused``)."""
    return (4,) if implementation == "fused" else ()


def copies(tensors: Iterable[Trained]) -> Size:
    """One copy of every trained tensor: what a foreach operator makes of a list."""
    total: Size = 0
    for tensor in tensors:
        total = total + tensor.size_bytes * tensor.count
    return total


class Names:
    """The names of a loop over parameters and what each holds. An assignment frees what a name held only when the new
    tensor is there, and names outlive an iteration, as in any Python function. ``peak`` is the highest sum."""

    def __init__(self) -> None:
        self.held: dict[str, Size] = {}
        self.peak: Size = 0

    def new(self, name: str, size: Size, *beside: Size) -> None:
        """Make a tensor while unnamed ones (``beside``) live, and give it a name."""
        self.scratch(size, *beside)
        self.held[name] = size

    def scratch(self, *sizes: Size) -> None:
        """Tensors that live within one expression."""
        total: Size = 0
        for size in (*self.held.values(), *sizes):
            total = total + size
        self.peak = maximum(self.peak, total)

    def free(self, *names: str) -> None:
        """These names hold nothing any more."""
        for name in names:
            self.held.pop(name, None)
