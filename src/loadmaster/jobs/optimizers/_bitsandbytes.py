"""bitsandbytes' optimizers: 32-bit and blockwise 8-bit states, some of them in memory that the driver pages.

bitsandbytes/optim/optimizer.py: ``init_state`` (tensors of fewer than 4096 values keep float32 states; 8-bit ones have a
float32 absmax for every 256 values) and ``get_state_buffer`` (paged: only tensors of 100,000 values and more, by
cudaMallocManaged, which PyTorch's allocator never sees; absmax stays in device memory). A step is one kernel a tensor.
"""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, where
from loadmaster.jobs.optimizers._step import Trained

SMALLEST_8BIT = 4096
SMALLEST_PAGED = 100_000
BLOCK = 256


def wide(tensor: Trained, number: int) -> tuple[Size, ...]:
    """``number`` float32 states."""
    return (4 * tensor.elements,) * number


def narrow(tensor: Trained, number: int) -> tuple[Size, ...]:
    """``number`` 8-bit states with their scales, or float32 ones of a small tensor."""
    small = tensor.elements < SMALLEST_8BIT
    codes = where(small, 4 * tensor.elements, tensor.elements)
    return (codes,) * number + (scales(tensor),) * number


def scales(tensor: Trained) -> Size:
    """The absmax of one 8-bit state: nothing for a small tensor."""
    return where(tensor.elements < SMALLEST_8BIT, 0 * tensor.elements, 4 * ceil_div(tensor.elements, BLOCK))


def unpaged(tensor: Trained, states: tuple[Size, ...]) -> tuple[Size, ...]:
    """What of ``states`` stays in device memory: all of a tensor that is too small to be paged, else nothing."""
    return tuple(where(tensor.elements < SMALLEST_PAGED, size, 0 * size) for size in states)


def paged(tensor: Trained, states: tuple[Size, ...]) -> Size:
    """Bytes of ``states`` in managed memory."""
    total: Size = 0
    for size in states:
        total = total + where(tensor.elements < SMALLEST_PAGED, 0 * size, size)
    return total
