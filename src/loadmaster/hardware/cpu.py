"""A machine without a GPU as a device: torch on the CPU takes its tensors from RAM."""

from __future__ import annotations

from loadmaster.hardware.gpu import Gpu
from loadmaster.hardware.machine import Device, Host

VENDOR = "CPU"


def cpu_device(host: Host) -> Device | None:
    """This machine's CPU with the RAM that is available now; None where that isn't known."""
    size_bytes = host.usable_ram_bytes
    if not size_bytes:
        return None
    gpu = Gpu(
        name="CPU of this machine",
        vendor=VENDOR,
        architecture=VENDOR,
        memory_marketed_bytes=size_bytes,
        memory_type="LPDDR or DDR",
        unified_memory=True,
        source="RAM that is available on this machine",
    )
    return Device(gpu=gpu, cuda_total_bytes=size_bytes)
