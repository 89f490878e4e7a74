"""AMD cards from sysfs: the amdgpu driver tells memory there without any library (kernel: gpu/amdgpu/driver-misc)."""

from __future__ import annotations

from pathlib import Path

from loadmaster.hardware import Absent, Device, Link, find_detected
from loadmaster.records import replace
from loadmaster.sensors import files

_VENDOR = "0x1002"


def read(root: Path = Path("/")) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """The AMD cards of this machine, or why there are none. Never raises."""
    drm = root / "sys/class/drm"
    try:
        cards = sorted(path for path in drm.glob("card*") if path.name[4:].isdigit())
    except OSError:
        cards = []
    devices = [
        _device(root, card / "device", index)
        for index, card in enumerate(card for card in cards if files.text(card / "device/vendor") == _VENDOR)
    ]
    found = tuple(device for device in devices if device is not None)
    if found:
        return found, ()
    reason = "the amdgpu driver tells no memory size" if devices else "no AMD GPU in /sys/class/drm"
    return (), (Absent(vendor="AMD", reason=reason),)


def _device(root: Path, card: Path, index: int) -> Device | None:
    total = files.number(card / "mem_info_vram_total")
    if total is None:
        return None
    target = _gfx_target(root, card)
    product = files.text(card / "product_name")
    found = find_detected(product, total) if product else None
    if (found is None or found.gpu.vendor == "unknown") and target:
        found = find_detected(target, total)
    if found is None:
        found = find_detected("AMD GPU", total)
    shared = found.gpu.shares_system_memory
    used = files.number(card / "mem_info_vram_used")
    gtt = files.number(card / "mem_info_gtt_total")
    return replace(
        found,
        index=index,
        device_name=product or target or "AMD GPU",
        nvml_total_bytes=None if shared else total,
        held_bytes=None if shared else used,
        # An APU's job memory is its carve-out or the part of system memory mapped to it, whichever is larger.
        cuda_total_bytes=max(total, gtt or 0) if shared else None,
        driver=files.text(root / "sys/module/amdgpu/version"),
        link=_link(card),
    )


def _gfx_target(root: Path, card: Path) -> str | None:
    """``gfx942`` and the like, from the compute topology: the node whose render device is this card's."""
    try:
        render = {path.name.removeprefix("renderD") for path in (card / "drm").glob("renderD*")}
        nodes = sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"))
    except OSError:
        return None
    for node in nodes:
        facts = files.fields(node)
        version = facts.get("gfx_target_version", 0)
        if version and str(facts.get("drm_render_minor")) in render:
            return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return None


def _link(card: Path) -> Link | None:
    link = Link(
        generation=_generation(files.text(card / "current_link_speed")),
        lanes=files.number(card / "current_link_width"),
        max_generation=_generation(files.text(card / "max_link_speed")),
        max_lanes=files.number(card / "max_link_width"),
    )
    return link if link != Link() else None


def _generation(speed: str | None) -> int | None:
    """The PCIe generation of a lane speed such as ``16.0 GT/s PCIe``."""
    rate = (speed or "").partition(" ")[0]
    return {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}.get(rate)
