"""Slices of a card: MIG instances and vGPU profiles, with their memory.

A MIG instance's memory is what ``nvidia-smi mig -lgip`` prints for its profile, and CUDA sees all of it (A100 1g.5gb:
4.75 GiB in both; H200 1g.18gb: 16.00 GiB in both). Where no output was seen it follows from the documented fraction.
A vGPU's profile names its framebuffer in GiB (``GRID T4-8Q``: 8192 MiB).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from loadmaster.errors import AmbiguousNameError, UnknownNameError
from loadmaster.hardware.catalogue import get_gpu, table
from loadmaster.hardware.gpu import Gpu
from loadmaster.hardware.machine import Device, Partition
from loadmaster.records import replace
from loadmaster.units import GIB, MIB

_MIG = re.compile(
    r"(?:(.*\S)\s*[:\s/]\s*|)(?:mig[\s-]*)?(?:\d+c\.)?(\d+g\.\d+gb)(?:[+-][a-z.]+)*", re.ASCII | re.IGNORECASE
)
_VGPU = re.compile(r"(?:grid\s+|nvidia\s+)*(.*\w)-(\d{1,3})([qcab])", re.ASCII | re.IGNORECASE)


def split_mig(text: str) -> tuple[str, str] | None:
    """``NVIDIA H200 MIG 1g.18gb`` and ``h200:1g.18gb`` give the card and the profile; None when there is no profile."""
    match = _MIG.fullmatch(text)
    if match is None:
        return None
    card = re.sub(r"[\s:]*\bmig$", "", match.group(1) or "", flags=re.IGNORECASE).strip()
    return card, match.group(2).lower()


def split_vgpu(text: str) -> tuple[str, str] | None:
    """``GRID T4-8Q`` gives ``T4`` and ``8Q``; None when the text has no such ending."""
    match = _VGPU.fullmatch(text)
    return (match.group(1), f"{match.group(2)}{match.group(3).upper()}") if match else None


def profiles(gpu: Gpu) -> tuple[str, ...]:
    """The MIG profiles of a card, smallest first; empty when it has none."""
    return tuple(row["profile"] for row in table("mig.csv") if gpu.name in row["gpus"].split(";"))


def mig_device(card: str, profile: str, find: Callable[[str], Device | None]) -> Device | None:
    """The MIG slice of a card, found by ``find``; None when there is no such card.

    Raises UnknownNameError when the card has no such profile, AmbiguousNameError when several cards could be meant.
    """
    if not card:
        return _by_profile(profile)
    try:
        found = find(card)
    except AmbiguousNameError as error:
        having = [name for name in error.choices if profile in profiles(get_gpu(name))]
        if len(having) != 1:
            raise AmbiguousNameError(
                "GPU", f"{card}:{profile}", [f"{name}:{profile}" for name in having or error.choices]
            ) from None
        found = Device(gpu=get_gpu(having[0]))
    if found is None:
        return None
    return replace(found, partition=mig(found.gpu, profile))


def mig(gpu: Gpu, profile: str) -> Partition:
    """The MIG slice of a card; raises UnknownNameError naming the profiles it has."""
    for row in table("mig.csv"):
        if row["profile"] == profile and gpu.name in row["gpus"].split(";"):
            return _mig_partition(gpu, row)
    has = profiles(gpu)
    hint = f"{gpu.name} has {', '.join(has)}" if has else f"{gpu.name} has no MIG profiles in the catalogue"
    raise UnknownNameError(
        "MIG profile", f"{gpu.name}:{profile}", [f"{gpu.name}:{name}" for name in has[:1]], hint=hint
    )


def vgpu(gpu: Gpu, profile: str) -> Partition:
    """The vGPU profile of a card: totals seen range from 0.922 (A10-2Q) to 1.0 of the GiB in the profile's name."""
    nominal = int(profile[:-1]) * GIB
    for row in table("gpu_memory_observations.csv"):
        seen = split_vgpu(row["device_name"])
        if (
            row["quantity"] == "nvml_total"
            and seen
            and seen[1] == profile
            and seen[0] in (gpu.name, *gpu.aliases)
        ):
            total = int(row["value_mib"]) * MIB
            return Partition(
                kind="vgpu",
                profile=profile,
                memory_bytes=total,
                memory_low_bytes=total,
                memory_high_bytes=total,
                source=row["source"],
            )
    return Partition(
        kind="vgpu", profile=profile, memory_bytes=nominal, memory_low_bytes=nominal * 922 // 1000,
        memory_high_bytes=nominal, source="GiB in the profile's name",
    )  # fmt: skip


def _by_profile(profile: str) -> Device:
    cards = [name for row in table("mig.csv") if row["profile"] == profile for name in row["gpus"].split(";")]
    if not cards:
        raise UnknownNameError(
            "MIG profile", profile, hint="a slice is named with its card: A100-80GB:1g.10gb"
        )
    raise AmbiguousNameError("GPU", profile, [f"{name}:{profile}" for name in cards])


def _mig_partition(gpu: Gpu, row: dict[str, str]) -> Partition:
    part, whole_of = (int(number) for number in row["fraction"].split("/"))
    slices, slices_of = (int(number) for number in row["compute_slices"].split("/"))
    if row["memory_mib"]:
        likely = low = high = int(row["memory_mib"]) * MIB
    else:
        # Listed slices hold 0.90 (GH200 1g.12gb) to 1.0 of their fraction of the card's NVML total.
        whole = (gpu.memory_nvml_bytes or gpu.memory_marketed_bytes) * part // whole_of
        low, likely, high = whole * 90 // 100, whole * 95 // 100, whole
    return Partition(
        kind="mig", profile=row["profile"], memory_bytes=likely, memory_low_bytes=low, memory_high_bytes=high,
        fraction=part / whole_of, compute_fraction=slices / slices_of, source=row["source"],
    )  # fmt: skip
