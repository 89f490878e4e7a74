"""Weights: the base model in its format, packed or plain, and LoRA's adapters beside it."""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.dtypes import BITS
from loadmaster.jobs.job import Job
from loadmaster.jobs.quantizations import find, kept_bytes, packs
from loadmaster.memory.inventory import adapters, matrix_of, parameters
from loadmaster.memory.parts import Part, commas, counted
from loadmaster.models.parameters import tensors
from loadmaster.models.spec import Attention, ModelSpec

SOURCE = (
    "torch.nn.Parameter: values × bytes of the format, each tensor rounded up to 512 B by the CUDA allocator"
)


def weights(spec: ModelSpec, job: Job) -> Part:
    """The base model's parameters on the device."""
    held = parameters(spec, job)
    total: Size = 0
    for h in held:
        total = total + h.size_bytes
    slack = total // 20 if not spec.exact else 0

    def formula() -> str:
        sums: dict[str, tuple[int, int]] = {}
        for h in held:
            size = h.packed_bytes if h.packed else int(h.elements) * h.count * BITS[h.dtype] // 8
            values, so_far = sums.get(h.dtype, (0, 0))
            sums[h.dtype] = (values + int(h.elements) * h.count, so_far + size)
        terms = [f"{n:,} {dtype} × {size / n:.4g} B" for dtype, (n, size) in sums.items()]
        return " + ".join(terms) + (" (with scales)" if job.quantization else "")

    source = find(job.quantization.dtype).SOURCE if job.quantization else SOURCE
    return Part("weights", total, formula, source, low_bytes=total - slack, high_bytes=total + slack)


def kept(spec: ModelSpec, job: Job) -> Part | None:
    """Buffers that the kernels of packed weights keep for the whole run."""
    if job.quantization is None:
        return None
    matrices = [m for m in (matrix_of(spec, t) for t in tensors(spec)) if m is not None]
    size = kept_bytes([m for m in matrices if packs(m, job.quantization, head=False)], job.quantization)
    if not size:
        return None
    words = f"buffers of the {job.quantization.variant} kernel"
    return counted("buffers", size, words, find(job.quantization.dtype).SOURCE)


def unfused(spec: ModelSpec, job: Job) -> Part | None:
    """Query, key and value matrices that have been joined into one and still live while the model is loaded."""
    if not job.facts.fused_attention:
        return None
    mixers = [b.mixer for tower in spec.towers for b in tower.blocks if isinstance(b.mixer, Attention)]
    names = {p.name for mixer in mixers if len(mixer.projections) == 3 for p in mixer.projections}
    size: Size = 0
    for h in parameters(spec, job):
        if any(h.name.removesuffix(".weight").endswith(name) for name in names):
            size = size + h.size_bytes
    source = "awq/models/mistral.py MistralFuser.attention_modules keeps the modules that it replaces"
    return counted("temporaries", size, "query, key and value matrices before they were joined", source)


def unpacking(spec: ModelSpec, job: Job) -> list[Part]:
    """Packing on loading brings each tensor to the device in its stored format first."""
    if job.quantization is None or not find(job.quantization.dtype).ON_LOAD:
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
