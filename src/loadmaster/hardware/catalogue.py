"""The catalogue of accelerators, read from ``data/gpus.csv`` when first asked for (a few milliseconds)."""

from __future__ import annotations

import csv
from functools import cache

from loadmaster import data
from loadmaster.errors import UnknownNameError
from loadmaster.hardware.gpu import Gpu
from loadmaster.units import GIB, MIB


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a data file as they are written; an empty cell is an empty string."""
    with data.path(name).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def _by_name() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in table("gpus.csv")}


@cache
def get_gpu(name: str) -> Gpu:
    """The row with exactly this name (``RTX 4090``); ``find_gpu`` knows the other spellings.

    Raises UnknownNameError.
    """
    row = _by_name().get(name)
    if row is None:
        raise UnknownNameError("GPU", name)
    return _gpu(row)


def all_gpus() -> tuple[Gpu, ...]:
    """Every row of the catalogue, in its order."""
    return tuple(get_gpu(name) for name in _by_name())


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
        architecture=row["architecture"] or None,
        compute_capability=row["compute_capability"] or None,
        year=int(row["year"]) if row["year"] else None,
        memory_marketed_bytes=int(float(row["memory_gb_marketed"]) * GIB),
        memory_nvml_bytes=_mib(row["memory_mib_nvml"]),
        memory_cuda_bytes=_mib(row["memory_mib_cuda"]),
        memory_cuda_low_bytes=_mib(row["memory_mib_cuda_low"] or row["memory_mib_cuda"]),
        memory_cuda_high_bytes=_mib(row["memory_mib_cuda_high"] or row["memory_mib_cuda"]),
        memory_type=row["memory_type"] or None,
        bandwidth_gb_per_s=_number(row["bandwidth_gb_per_s"]),
        unified_memory=row["unified_memory"] == "yes",
        pcie_gen=int(row["pcie_gen"]) if row["pcie_gen"] else None,
        pcie_lanes=int(row["pcie_lanes"]) if row["pcie_lanes"] else None,
        interconnect=row["interconnect"] or None,
        interconnect_gb_per_s=_number(row["interconnect_gb_per_s"]),
        fp32_tflops=_number(row["fp32_tflops"]),
        tf32_tflops=_number(row["tf32_tflops"]),
        bf16_tflops=_number(row["bf16_tflops"]),
        fp16_tflops=_number(row["fp16_tflops"]),
        fp8_tflops=_number(row["fp8_tflops"]),
        int8_tops=_number(row["int8_tops"]),
        tdp_w=_number(row["tdp_w"]),
        source=row["source"],
        notes=row["notes"],
    )


def _mib(cell: str) -> int | None:
    return int(float(cell) * MIB) if cell else None


def _number(cell: str) -> float | None:
    return float(cell) if cell else None
