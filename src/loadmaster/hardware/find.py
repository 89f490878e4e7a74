"""From a spelling to a device: exact spellings first, then a suggestion; what is ambiguous asks, nothing is guessed.

``find_gpu("8xH100")``, ``find_gpu("a100-80gb:1g.10gb")``, ``find_gpu("GRID T4-8Q")``, ``find_gpu("m3 max 64gb")``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadmaster.errors import AmbiguousNameError, BadValueError, UnknownNameError
from loadmaster.hardware import names, partitions
from loadmaster.hardware.catalogue import get_gpu
from loadmaster.hardware.gpu import Gpu
from loadmaster.hardware.machine import Device, Partition
from loadmaster.records import replace
from loadmaster.units import GIB, MIB, format_bytes, parse_bytes

_COUNT_FIRST = re.compile(r"(\d{1,4})\s*[x×*]\s*(\S.*)", re.ASCII | re.IGNORECASE)
_COUNT_LAST = re.compile(r"(.*\S)(?:\s*:\s*|\s+[x×*]\s*)(\d{1,4})", re.ASCII | re.IGNORECASE)
_SIZE_LAST = re.compile(r"(.*\S)[\s_-]+(\d{1,4})\s*(?:gib|gb|g)", re.ASCII | re.IGNORECASE)
_LONGEST_NAME = 100
MOST_CARDS = 4096
_SMALLEST_SHARE, _LARGEST_SHARE = 0.90, 1.02
"""A driver's total over the marketed size: ECC on GDDR6 leaves 0.9375, makers of HBM cards round up by up to 1/0.933
(B300), CUDA keeps 0.972 of NVML's total or more (T4). Sizes sold under one name differ by a sixth or more."""


def find_gpu(text: str) -> Device:
    """The device that a spelling names, with its count, slice and what was assumed.

    Accepts what people (``4090``), nvidia-smi and torch (``NVIDIA GeForce RTX 4090``, ``NVIDIA H200 MIG 1g.18gb``),
    ROCm (``gfx942``) and clouds (``H100:8``, ``8xH100``) write, MIG slices (``a100-80gb:1g.10gb``), vGPU profiles
    (``GRID T4-8Q``) and, for machines whose memory is shared with the CPU, a size (``m3 max 64gb``).

    Raises UnknownNameError with the nearest names, AmbiguousNameError with the choices, BadValueError for a count of 0.
    """
    text = " ".join(text.split())
    if not text or len(text) > _LONGEST_NAME or not text.isprintable():
        raise BadValueError("GPU", text[:40], "a name such as RTX 4090, A100-80GB or H100:8")
    found = _try(text)
    if found is not None:
        return found
    for pattern, name_group, count_group in ((_COUNT_FIRST, 2, 1), (_COUNT_LAST, 1, 2)):
        match = pattern.fullmatch(text)
        if match:
            count = int(match.group(count_group))
            found = _try(match.group(name_group))
            if found is not None:
                if not 1 <= count <= MOST_CARDS:
                    raise BadValueError("number of GPUs", count, f"1 to {MOST_CARDS}")
                return replace(found, count=count)
            text = match.group(name_group)
            break
    raise UnknownNameError(
        "GPU",
        text,
        nearest(text),
        hint="'loadmaster hardware list' shows all; --vram 24GiB gives a size instead",
    )


def custom_device(size: float | str) -> Device:
    """A device known by its size alone (``--vram 24GiB``): CUDA is taken to see exactly this much.

    Raises BadValueError when the size isn't one, isn't positive, or is a number without a unit that can't be bytes.
    """
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise BadValueError("memory size", size, "a size such as 24GiB or 24GB")
    bare = not isinstance(size, str) or not size.strip(" -+.0123456789")
    try:
        size_bytes = parse_bytes(size) if isinstance(size, str) else int(size)
    except (ValueError, OverflowError):
        raise BadValueError("memory size", size, "a size such as 24GiB or 24GB") from None
    if bare and 0 < size_bytes < MIB:
        raise BadValueError("memory size", size, f"a unit: {str(size).strip()} of what? Say 24GiB or 24GB")
    if size_bytes != size and isinstance(size, float):
        raise BadValueError("memory size", size, "whole bytes, or a size such as 24GiB or 24GB")
    if not 0 < size_bytes < 2**60:
        raise BadValueError("memory size", size, "more than 0 and less than 1 EiB")
    gpu = Gpu(
        name=f"{format_bytes(size_bytes)} device",
        vendor="any",
        memory_marketed_bytes=size_bytes,
        source="given by the user",
    )
    return Device(
        gpu=gpu, cuda_total_bytes=size_bytes, assumed=(f"CUDA sees {format_bytes(size_bytes)}, as given",)
    )


def find_detected(name: str, total_bytes: int | None) -> Device:
    """The device that a driver named, told apart by its memory total where several cards share the name (RTX 3060 with
    8 and 12 GB). A card that the catalogue doesn't have gets a row of its own with what is known; never raises."""
    try:
        found = _try(name, total_bytes)
    except AmbiguousNameError as error:
        smallest = min(
            (get_gpu(choice.partition(":")[0]) for choice in error.choices),
            key=lambda gpu: gpu.memory_marketed_bytes,
        )
        found = Device(gpu=smallest, assumed=(f"{name} is taken to be the smallest of that name",))
    except (BadValueError, UnknownNameError):
        found = None
    if found is not None:
        size = found.gpu.memory_marketed_bytes
        if (
            total_bytes
            and not found.partition
            and not _SMALLEST_SHARE <= total_bytes / size <= _LARGEST_SHARE
        ):
            said = (
                f"it reports {format_bytes(total_bytes)}, unlike the {format_bytes(size)} of {found.gpu.name}"
            )
            found = replace(found, assumed=(*found.assumed, said))
        return replace(found, device_name=name)
    gpu = Gpu(
        name=name or "unknown GPU",
        vendor="unknown",
        memory_marketed_bytes=total_bytes or 0,
        source="reported by the driver",
    )
    return Device(gpu=gpu, device_name=name, assumed=(f"{name} is not in the catalogue",))


def nearest(text: str) -> list[str]:
    """The catalogue names closest to a spelling, best first; at most two."""
    import difflib

    if inside := names.with_words(text):
        return inside[:2]
    index = names.keys()
    key = names.fold(text)
    near = difflib.get_close_matches(key, [*index.names, *index.aliases, *index.forms], n=6, cutoff=0.6)
    found: dict[str, float] = {}
    for close in near:
        ratio = difflib.SequenceMatcher(None, key, close).ratio()
        if sorted(key) == sorted(close):  # two characters swapped: the likeliest slip
            ratio += 0.05
        for name in (index.names.get(close), *index.aliases.get(close, ()), *index.forms.get(close, ())):
            if name is not None:
                found.setdefault(name, ratio)
    best = max(found.values(), default=0.0)
    return [name for name, ratio in found.items() if ratio >= best - 0.02][:2]


def _try(text: str, total_bytes: int | None = None) -> Device | None:
    """A device without a count, or None when nothing has this name."""
    profile = partitions.split_mig(text)
    if profile is not None:
        card, mig = profile
        return partitions.mig_device(card, mig, _card)
    vgpu = partitions.split_vgpu(text)
    if vgpu is not None and (found := _card(vgpu[0])) is not None and found.gpu.vendor == "NVIDIA":
        return replace(found, partition=partitions.vgpu(found.gpu, vgpu[1]))
    found = _card(text, total_bytes)
    if found is None and (match := _SIZE_LAST.fullmatch(text)):
        return _shared_memory(match.group(1), int(match.group(2)) * GIB)
    if found is not None and found.gpu.shares_system_memory and total_bytes is None:
        size = format_bytes(found.gpu.memory_marketed_bytes, 0)
        return replace(
            found,
            assumed=(
                *found.assumed,
                f"{size} of system memory, the largest {found.gpu.name} in the catalogue",
            ),
        )
    return found


def _shared_memory(name: str, size_bytes: int) -> Device | None:
    """``m3 max 64gb``: only where the memory is the system's does a size given apart make sense."""
    found = _card(name)
    if (
        found is None
        or not found.gpu.shares_system_memory
        or not 0 < size_bytes <= found.gpu.memory_marketed_bytes
    ):
        return None
    return replace(found, system_memory_bytes=size_bytes)


def _card(text: str, total_bytes: int | None = None) -> Device | None:
    index, key = names.keys(), names.fold(text)
    own = index.names.get(key)
    claimed = index.aliases.get(key, ())
    if own is not None and own not in claimed:
        claimed = (own, *claimed) if total_bytes is not None else (own,)
    candidates = claimed or index.forms.get(key, ())
    if not candidates:
        return None
    others = [name for name in index.forms.get(key, ()) if name not in candidates]
    if total_bytes is not None:
        candidates = (
            tuple(_of_size([get_gpu(name) for name in (*candidates, *others)], total_bytes)) or candidates
        )
        others = []
    first = get_gpu(candidates[0])
    if own is None and any(
        get_gpu(other).memory_marketed_bytes < first.memory_marketed_bytes for other in others
    ):
        raise AmbiguousNameError("GPU", text, (*candidates, *others))  # a default must not promise too much
    if len(candidates) > 1 and not _alike([get_gpu(name) for name in candidates]):
        raise AmbiguousNameError("GPU", text, candidates)
    also = [*candidates[1:], *(others if own is None else [])]
    assumed = (f"{text} is taken to be {first.name} ({_either(also)} named so too)",) if also else ()
    return Device(gpu=first, assumed=assumed)


def _alike(gpus: Sequence[Gpu]) -> bool:
    """Same memory and same architecture: every figure about memory is the same, whichever is meant."""
    first = gpus[0]
    return all(
        gpu.architecture == first.architecture
        and gpu.memory_marketed_bytes == first.memory_marketed_bytes
        and (
            gpu.memory_nvml_bytes is None
            or first.memory_nvml_bytes is None
            or gpu.memory_nvml_bytes == first.memory_nvml_bytes
        )
        and gpu.vendor == first.vendor
        for gpu in gpus[1:]
    )


def _of_size(gpus: Sequence[Gpu], total_bytes: int) -> list[str]:
    """The cards that a driver's total could belong to, the nearest of them."""
    fitting = [
        gpu for gpu in gpus if _SMALLEST_SHARE <= total_bytes / gpu.memory_marketed_bytes <= _LARGEST_SHARE
    ]
    best = min((abs(total_bytes - gpu.memory_marketed_bytes) for gpu in fitting), default=0)
    return [gpu.name for gpu in fitting if abs(total_bytes - gpu.memory_marketed_bytes) == best]


def _either(others: Sequence[str]) -> str:
    verb = "is" if len(others) == 1 else "are"
    return f"{', '.join(others)} {verb}"


__all__ = ["Partition", "custom_device", "find_detected", "find_gpu", "nearest"]
