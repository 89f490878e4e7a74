"""How far each component may be from what is predicted, and why: the interval is the sum of these, not a percentage of all.

Percentages below and above, from how far libraries differ in the same layer: transformers against LitGPT, torchtune and timm
on published peaks (docs/accuracy.md), and from what PyTorch's kernels take beyond their outputs.
"""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.jobs.job import Job
from loadmaster.memory.parts import Part
from loadmaster.records import Interval
from loadmaster.units import MIB


class Spread(NamedTuple):
    """Percent below and above the likely size, and the reason."""

    below: int
    above: int
    why: str


SPREADS = {
    "weights": Spread(1, 1, "buffers beside the parameters; heads that a library ties or not"),
    "adapters": Spread(1, 2, "padding of fused projections"),
    "gradients": Spread(1, 2, "bucket views, gradients that share a table"),
    "optimizer states": Spread(1, 1, "step counters on the device"),
    "master weights": Spread(1, 1, "flat buffers and their padding"),
    "kv cache": Spread(1, 3, "blocks and windows rounded up"),
    "activations": Spread(20, 15, "libraries write the same layer with more or fewer kept copies"),
    "logits": Spread(35, 20, "upcasts done in place or not, logits kept by the loop"),
    "temporaries": Spread(60, 40, "kernels fused or written out, their own scratch"),
    "profile run": Spread(20, 30, "versions whose sampler sorts more or less, kernels' own workspaces"),
    "compute buffer": Spread(15, 25, "versions whose graph is laid out otherwise"),
    "weight copies": Spread(10, 10, "which weights autocast casts"),
}
PACKED = Spread(4, 6, "which layers a loader packs, and the layout of its scales")
WORKSPACE_BYTES = 96 * MIB
"""cuBLASLt and cuDNN take workspaces of their own: 32 MiB each on Hopper (CublasHandlePool.cpp, cuDNN v8 API limits)."""


def reason(component: str, job: Job) -> str:
    """Why a component of GPU memory may be smaller or larger than predicted; empty where its bounds are its source's."""
    if component == "workspace":
        return "cuBLASLt and cuDNN may take workspaces of their own"
    if component == "weights" and job.quantization is not None:
        return PACKED.why
    return SPREADS[component].why if component in SPREADS else ""


def spread(part: Part, job: Job) -> Interval:
    """The bounds of one part: its own where it has them, else its component's."""
    size = int(part.size_bytes)
    if part.component == "workspace":
        return Interval(low=0, likely=size, high=size + WORKSPACE_BYTES)
    found = SPREADS.get(part.component, Spread(0, 0, ""))
    if part.component == "weights" and job.quantization is not None:
        found = PACKED
    low = size - size * found.below // 100
    high = size + size * found.above // 100
    if part.low_bytes is not None:
        low = min(low, int(part.low_bytes))
    if part.high_bytes is not None:
        high = max(high, int(part.high_bytes))
    return Interval(low=low, likely=size, high=high)
