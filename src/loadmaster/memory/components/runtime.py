"""What the libraries take besides tensors of the model: cuBLAS workspace inside PyTorch's pool."""

from __future__ import annotations

from loadmaster.memory.parts import Part
from loadmaster.units import KIB, MIB

SOURCE = (
    "aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize: 32 MiB on compute capability 9.0, else "
    ":4096:2:16:8 = 2 × 4096 KiB + 8 × 16 KiB, one for each handle and stream in use"
)


def cublas_workspace(compute_capability: str | None, *, training: bool) -> Part:
    """The workspace of cuBLAS: one of the forward thread's handle, another of autograd's backward thread."""
    one = 32 * MIB if compute_capability == "9.0" else (2 * 4096 + 8 * 16) * KIB
    count = 2 if training else 1
    return Part("workspace", one * count, lambda: f"{count} × {one:,} B", SOURCE, origin="table")
