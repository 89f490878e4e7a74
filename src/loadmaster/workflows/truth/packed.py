"""From how a source spells packed weights to a Quantization of Job."""

from __future__ import annotations

import re

from loadmaster.jobs import quantizations
from loadmaster.jobs.frameworks import facts
from loadmaster.jobs.job import Quantization
from loadmaster.records import replace
from loadmaster.workflows.truth.words import Format

FORMATS = {
    ("bnb", "nf4"): "nf4", ("bnb", "fp4"): "fp4", ("bnb", "int8"): "int8",
    ("gptq", "int3"): "gptq", ("gptq", "int4"): "gptq", ("gptq", "int8"): "gptq",
    ("awq", "int4"): "awq",
    ("hqq", "int3"): "hqq", ("hqq", "int4"): "hqq", ("hqq", "int8"): "hqq",
    ("weight-only", "int8"): "int8_weight_only", ("weight-only", "int4"): "int4_weight_only",
    ("weight-only", "fp6"): "fp6", ("weight-only", "fp8"): "fp8", ("weight-only", "mxfp4"): "mxfp4",
}  # fmt: skip
"""(method, packed format) to a file of ``jobs/quantizations``."""

_KERNEL = re.compile(r"\bkernel type was (\w+)", re.ASCII | re.IGNORECASE)


def quantization(stored: Format, framework: str, compute: str, notes: str | None) -> Quantization | None:
    """The Quantization that words say; None where no format here is meant. ``notes`` may name the kernel."""
    name = FORMATS.get((stored.kind or "", stored.packed or ""))
    if name is None or ("experts" in stored.words.lower() and name != "mxfp4"):
        return None
    found = quantizations.named(name, compute=compute)
    module = quantizations.find(name)
    digits = re.search(r"\d+", stored.packed or "")
    if digits and int(digits.group()) in module.CHOICES:
        found = replace(found, bits=int(digits.group()))
    if stored.group is not None and module.GROUP is not None:
        found = replace(found, block=stored.group)
    upcast = module.UPCASTS and stored.rest is None
    return replace(
        found, double=stored.double, upcast_rest=upcast, variant=_variant(found, stored, framework, notes)
    )


def _variant(found: Quantization, stored: Format, framework: str, notes: str | None) -> str | None:
    """The kernel or type that the words name, else the library's own choice."""
    module, text = quantizations.find(found.dtype), stored.words.lower()
    if found.dtype == "gptq":
        if "exllama" in text:
            return "exllamav2" if "v2" in text else "exllama"
        return facts(framework).gptq_kernel if found.bits == 4 else facts(framework).gptq_other_kernel
    if found.dtype == "awq":
        named = _KERNEL.search(notes or "")
        if named and named.group(1).lower() == "gemv":
            return "gemv"
        return facts(framework).awq_kernel
    if found.dtype == "fp8":
        return next((v for v in module.VARIANTS if v in text), "tensor")
    return found.variant
