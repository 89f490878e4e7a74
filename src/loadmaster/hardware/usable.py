"""How many bytes of a device one job can use, term by term, each with where it comes from.

    usable = CUDA-visible total − CUDA context of that architecture and driver − what other processes hold

NVML's total and CUDA's are different: on Linux CUDA's is smaller by about what NVML calls reserved.
"""

from __future__ import annotations

from loadmaster.hardware.catalogue import table
from loadmaster.hardware.gpu import Gpu
from loadmaster.hardware.machine import Device, Host
from loadmaster.records import Interval, Record
from loadmaster.units import GIB, MIB

_LAZY_SINCE_DRIVER = 515
"""The first driver branch with CUDA 11.7, whose lazy loading torch switches on (pytorch/pytorch#107667)."""


_RESERVE_SHOWN_SINCE_DRIVER = 511
"""Before about this branch NVML's total leaves out the driver's reserve (gpu_memory_observations.csv: A100, A30)."""


class Usable(Record, kw_only=True):
    """The terms of the memory that one process can use on one card; ``origins`` says where each comes from."""

    visible_bytes: Interval
    context_bytes: Interval
    held_bytes: Interval
    usable_bytes: Interval
    origins: tuple[str, ...]


def usable(device: Device, host: Host | None = None) -> Usable:
    """Bytes that a job can use on one card of ``device``; never below 0 and never above the CUDA-visible total.

    ``host`` gives the system memory of machines that share it with the GPU.
    """
    visible, where = visible_memory(device, host)
    context, context_from = context_memory(device)
    held = Interval.exact(max(0, device.held_bytes or 0))
    left = visible - context - held
    most = visible.high
    origins = [f"visible: {where}", f"context: {context_from}"]
    if (
        device.gpu.shares_system_memory
        and device.index is not None
        and host
        and host.usable_ram_bytes is not None
    ):
        most = min(most, host.usable_ram_bytes)
        origins.append("at most the RAM that is available now")
    usable_bytes = Interval(
        low=max(0, min(left.low, most)),
        likely=max(0, min(left.likely, most)),
        high=max(0, min(left.high, most)),
    )
    if device.held_bytes is not None:
        origins.append("held by others: measured on this device")
    return Usable(
        visible_bytes=visible,
        context_bytes=context,
        held_bytes=held,
        usable_bytes=usable_bytes,
        origins=tuple(origins),
    )


def visible_memory(device: Device, host: Host | None = None) -> tuple[Interval, str]:
    """The total that CUDA (HIP, Metal, XLA) reports for the device, and where the figure comes from."""
    total, where = _visible(device, host)
    return Interval(low=max(0, total.low), likely=max(0, total.likely), high=max(0, total.high)), where


def _visible(device: Device, host: Host | None) -> tuple[Interval, str]:
    gpu = device.gpu
    if device.cuda_total_bytes is not None:
        what = "RAM available now" if gpu.vendor == "CPU" else "given or measured CUDA total"
        return Interval.exact(device.cuda_total_bytes), what
    if device.partition is not None:
        return _partition(device)
    if gpu.shares_system_memory:
        return _shared(device, host)
    if device.nvml_total_bytes is not None and _driver_branch(device) < _RESERVE_SHOWN_SINCE_DRIVER:
        # A100-80: 81251 by NVML, 81038 to 81158 by CUDA; V100-32: equal within 10 MiB.
        hidden = Interval(low=0, likely=100 * MIB, high=220 * MIB)
        return Interval.exact(
            device.nvml_total_bytes
        ) - hidden, "NVML total of this device, its driver hides the reserve"
    if device.nvml_total_bytes is not None:
        return _below_nvml(
            gpu,
            Interval.exact(device.nvml_total_bytes),
            device.nvml_reserved_bytes,
            "NVML total of this device",
        )
    if gpu.memory_cuda_bytes is not None:
        seen = Interval(
            low=gpu.memory_cuda_low_bytes or gpu.memory_cuda_bytes, likely=gpu.memory_cuda_bytes,
            high=gpu.memory_cuda_high_bytes or gpu.memory_cuda_bytes,
        )  # fmt: skip
        return _with_ecc(device, seen), f"CUDA total seen on {gpu.name}"
    if gpu.memory_nvml_bytes is not None:
        return _below_nvml(
            gpu, _with_ecc(device, Interval.exact(gpu.memory_nvml_bytes)), None, f"NVML total of {gpu.name}"
        )
    return _below_nvml(gpu, _with_ecc(device, _nvml_from_marketed(gpu)), None, f"marketed size of {gpu.name}")


def context_memory(device: Device) -> tuple[Interval, str]:
    """What the driver keeps for one process before its first tensor, and the source of the figure.

    Kernels are loaded when first used (lazily) with drivers from 515 on; older ones load all of them.
    """
    loading = _loading(device)
    architecture, memory = device.gpu.architecture or "", (device.gpu.memory_type or "")
    fallback = None
    for row in table("contexts.csv"):
        if row["loading"] == "other":
            fallback = row
        if (
            row["loading"] != loading
            or not row["architecture"]
            or not architecture.startswith(row["architecture"])
        ):
            continue
        if memory.startswith(row["memory"]) and (
            architecture == row["architecture"] or loading not in ("lazy", "eager")
        ):
            return _of_slice(device, _mib_interval(row)), row["source"]
    if fallback is None:
        raise AssertionError("contexts.csv has no row for anything else")
    return _mib_interval(fallback), fallback["source"]


def _of_slice(device: Device, whole: Interval) -> Interval:
    """On a MIG slice a context is smaller, it has fewer multiprocessors to serve: 272 MiB were taken on an A100 1g.5gb
    (public code index file 4774593259), about half of a whole A100."""
    if device.partition is None or device.partition.kind != "mig":
        return whole
    return Interval(low=whole.low // 2, likely=whole.likely * 3 // 4, high=whole.high)


def ecc_default(gpu: Gpu) -> bool | None:
    """Whether the catalogue's totals are with ECC on GDDR: it costs 1/16 there (T4: 16384 to 15360 MiB) and nothing
    on HBM. None: not told by the totals."""
    if not (gpu.memory_type or "").startswith("GDDR") or gpu.memory_nvml_bytes is None:
        return None
    return gpu.memory_nvml_bytes <= gpu.memory_marketed_bytes * 0.945


def _with_ecc(device: Device, total: Interval) -> Interval:
    default = ecc_default(device.gpu)
    if device.ecc is None or default is None or device.ecc == default:
        return total
    up, down = (15, 16) if device.ecc else (16, 15)
    return Interval(
        low=total.low * up // down, likely=total.likely * up // down, high=total.high * up // down
    )


def _loading(device: Device) -> str:
    vendor = device.gpu.vendor
    if vendor in ("AMD", "Apple", "Google", "CPU"):
        return {"AMD": "hip", "Apple": "metal", "Google": "xla", "CPU": "cpu"}[vendor]
    return "eager" if _driver_branch(device) < _LAZY_SINCE_DRIVER else "lazy"


def _driver_branch(device: Device) -> int:
    """The first number of an NVIDIA driver's version; a large one when it isn't known, so that it counts as recent."""
    branch = (device.driver or "").partition(".")[0]
    return int(branch) if device.gpu.vendor == "NVIDIA" and branch.isdigit() else 1_000_000


def _partition(device: Device) -> tuple[Interval, str]:
    part = device.partition
    if part is None:
        raise AssertionError("no partition")
    total = Interval(low=part.memory_low_bytes, likely=part.memory_bytes, high=part.memory_high_bytes)
    if device.nvml_total_bytes is not None:
        total = Interval.exact(device.nvml_total_bytes)
    if part.kind == "mig":
        return total, f"MIG {part.profile}: {part.source}"
    if device.nvml_reserved_bytes is not None:
        return total - device.nvml_reserved_bytes, f"vGPU {part.profile}, less its reserve"
    # Reserves seen on vGPUs: 431 MiB of 2048 (A40-2Q) to 2027 of 12288 (L4-12Q), 5 % to 22 % of the total.
    reserve = Interval(
        low=total.likely * 5 // 100, likely=total.likely * 12 // 100, high=total.likely * 22 // 100
    )
    return total - reserve, f"vGPU {part.profile}: {part.source}; reserve of vGPUs seen elsewhere"


def _shared(device: Device, host: Host | None) -> tuple[Interval, str]:
    gpu = device.gpu
    total = _system_memory(device, host)
    for row in table("unified.csv"):
        below = row["system_gb_below"]
        if gpu.name.startswith(row["match"]) and (not below or total < int(below) * GIB):
            percent = [int(row[f"percent_{which}"]) for which in ("low", "likely", "high")]
            low, likely, high = (total * share // 100 for share in percent)
            return Interval(
                low=low, likely=likely, high=high
            ), f"{percent[1]} % of system memory: {row['source']}"
    return Interval(low=total // 2, likely=total * 3 // 4, high=total), "share of system memory: assumption"


def _system_memory(device: Device, host: Host | None) -> int:
    """The whole of it as it is sold: the OS of a detected machine shows 0.9 to 1.0 of that (GB10: 119.7 of 128 GiB)."""
    marketed = device.gpu.memory_marketed_bytes
    if device.system_memory_bytes is not None:
        return device.system_memory_bytes
    seen = host.ram_total_bytes if host and device.index is not None else None
    return marketed if seen is None or 0.9 <= seen / marketed <= 1 else seen


def _below_nvml(gpu: Gpu, total: Interval, reserved_bytes: int | None, what: str) -> tuple[Interval, str]:
    if gpu.vendor not in ("NVIDIA", "AMD", "unknown"):
        return total, what
    if reserved_bytes is not None:
        return total - reserved_bytes, f"{what}, less what NVML reserves on it"
    row = _reserve_row(gpu)
    return total - _mib_interval(row), f"{what}, less the driver's reserve ({row['source']})"


def _reserve_row(gpu: Gpu) -> dict[str, str]:
    line = "geforce" if gpu.is_geforce else "other"
    architecture, memory = gpu.architecture or "", gpu.memory_type or ""
    for row in table("reserved.csv"):
        if row["gpu"]:
            if row["gpu"] == gpu.name:
                return row
        elif (
            architecture.startswith(row["architecture"])
            and (gpu.vendor != "NVIDIA" or architecture == row["architecture"] or not row["architecture"])
            and memory.startswith(row["memory"])
            and row["line"] in ("", line)
        ):
            return row
    raise AssertionError("reserved.csv has no row for anything else")


def _nvml_from_marketed(gpu: Gpu) -> Interval:
    """NVML totals of the catalogue are 0.993 to 1.0 of the marketed size on GeForce cards, 0.93 to 1.0 on others
    (ECC on GDDR6, rounding on HBM); the three Radeon totals seen are 16 MiB below it."""
    size = gpu.memory_marketed_bytes
    low, likely = (0.99, 0.999) if gpu.is_geforce or gpu.vendor == "AMD" else (0.93, 0.98)
    return Interval(low=int(size * low), likely=int(size * likely), high=size)


def _mib_interval(row: dict[str, str]) -> Interval:
    return Interval(
        low=int(row["mib_low"]) * MIB, likely=int(row["mib_likely"]) * MIB, high=int(row["mib_high"]) * MIB
    )
