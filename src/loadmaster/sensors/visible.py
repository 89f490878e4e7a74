"""Which of the cards a job started here would see: ``CUDA_VISIBLE_DEVICES``, which NVML itself does not heed.

CUDA's rules (CUDA C++ programming guide, environment variables): a list of indices or UUIDs (a unique beginning is
enough); the first entry that names nothing ends the list; an empty value hides all. Indices are read in NVML's order,
that of the PCI bus; CUDA's own order may put the fastest card first unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.hardware import Absent, Device

VARIABLE = "CUDA_VISIBLE_DEVICES"


def apply(
    devices: tuple[Device, ...], environment: Mapping[str, str]
) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """The devices that the variable leaves, in its order, and a note when it hides some."""
    value = environment.get(VARIABLE)
    if value is None or not devices:
        return devices, ()
    shown: list[Device] = []
    for entry in value.split(","):
        found = _named(entry.strip(), devices)
        if found is None or found in shown:
            break
        shown.append(found)
    hidden = len(devices) - len(shown)
    if not hidden:
        return tuple(shown), ()
    return tuple(shown), (
        Absent(vendor="NVIDIA", reason=f"{VARIABLE}={value} hides {hidden} of {len(devices)} GPUs"),
    )


def _named(entry: str, devices: tuple[Device, ...]) -> Device | None:
    if entry.isascii() and entry.isdigit():
        matching = [device for device in devices if device.index == int(entry)]
        return matching[0] if matching else None  # of a card in MIG mode CUDA takes the first instance
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    matching = [device for device in devices if device.uuid and device.uuid.startswith(entry)]
    return matching[0] if len(matching) == 1 else None
