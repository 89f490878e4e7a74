"""Weights: the base model in its format, packed or plain, and LoRA's adapters beside it."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, rounded
from loadmaster.dtypes import BITS
from loadmaster.jobs.job import Job, Quantization
from loadmaster.memory.inventory import Held, adapters, parameters
from loadmaster.memory.parts import Part, commas, counted
from loadmaster.models.spec import ModelSpec

SOURCE = (
    "torch.nn.Parameter: values × bytes of the format, each tensor rounded up to 512 B by the CUDA allocator"
)
PACKED_SOURCE = (
    "bitsandbytes functional.quantize_4bit: two values a byte, a float32 absmax per block; with double quantisation "
    "8-bit absmax plus a float32 per 256 of them (arXiv:2305.14314 §3)"
)

CODES = 256
"""Values of an 8-bit code table (bitsandbytes functional.create_dynamic_map)."""


def weights(spec: ModelSpec, job: Job) -> Part:
    """The base model's parameters on the device."""
    held = parameters(spec, job)
    total: Size = 0
    for h in held:
        total = total + (packed_bytes(h, job.quantization) if h.packed and job.quantization else h.size_bytes)
    slack = total // 20 if not spec.exact else 0

    def formula() -> str:
        sums: dict[str, int] = {}
        for h in held:
            sums[h.dtype] = sums.get(h.dtype, 0) + int(h.elements) * h.count
        terms = [f"{n:,} {dtype} × {BITS[dtype] / 8:g} B" for dtype, n in sums.items()]
        return " + ".join(terms) + (" + scales" if job.quantization else "")

    source = PACKED_SOURCE if job.quantization else SOURCE
    return Part("weights", total, formula, source, low_bytes=total - slack, high_bytes=total + slack)


def packed_bytes(held: Held, quantization: Quantization) -> Size:
    """Bytes of packed tensors with their scales."""
    values = held.elements
    if quantization.dtype == "int8":
        # bitsandbytes Int8Params: a byte a value and a float32 per output row, about 1/4096 of it; counted per 4096.
        return (rounded(values) + rounded(4 * ceil_div(values, 4096))) * held.count
    scales = ceil_div(values, quantization.block)
    one = rounded(ceil_div(values, 2))
    if quantization.double:
        # quant_state: absmax (uint8), its own absmax (float32 per 256), code (256 float32), nf4 code (16), offset.
        one = one + rounded(scales) + rounded(4 * ceil_div(scales, 256)) + 4 * CODES + 512 + 512
    else:
        one = one + rounded(4 * scales) + 512
    return one * held.count


def unpacking(spec: ModelSpec, job: Job) -> list[Part]:
    """Loading in 4 bits brings each tensor to the device in its stored format before packing it."""
    if job.quantization is None:
        return []
    largest = max((int(h.elements) for h in parameters(spec, job) if h.packed), default=0)
    source = "transformers quantizer_bnb_4bit: a parameter is moved, then quantised"
    return [counted("temporaries", 2 * largest, "largest tensor before it is packed: values × 2 B", source)]


def adapter_weights(spec: ModelSpec, job: Job) -> Part | None:
    """LoRA's A and B matrices."""
    if job.lora is None:
        return None
    held = adapters(spec, job)
    total: Size = 0
    values: Size = 0
    for h in held:
        total = total + h.size_bytes
        values = values + h.elements * h.count
    lora = job.lora

    def formula() -> str:
        size = f"{commas(values)} {lora.dtype} × {BITS[lora.dtype] // 8} B"
        return f"rank {commas(lora.rank)} × (inputs + outputs) of the targets = {size}"

    return Part(
        "adapters",
        total,
        formula,
        "peft/tuners/lora/layer.py: lora_A r × in, lora_B out × r (arXiv:2106.09685)",
    )
