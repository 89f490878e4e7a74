"""AMD detection from sysfs trees."""

from __future__ import annotations

from tests.support.nvml import NO_LIBRARY, FakeNvml
from tests.support.trees import GIB, lay, meminfo

from loadmaster.hardware import usable
from loadmaster.sensors import amd, detect

CARD = "sys/class/drm/card1/device"
NODE = "sys/class/kfd/kfd/topology/nodes/1/properties"


def card(tmp_path, total, gfx=None, **more):
    files = {
        f"{CARD}/vendor": "0x1002",
        f"{CARD}/mem_info_vram_total": total,
        f"{CARD}/drm/renderD129/dev": "",
    }
    files |= {f"{CARD}/{name}": value for name, value in more.items()}
    if gfx is not None:
        files |= {"sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\ngfx_target_version 0"}
        files |= {NODE: f"simd_count 192\ngfx_target_version {gfx}\ndrm_render_minor 129"}
    return lay(tmp_path, files)


def test_a_radeon_by_target_and_size(tmp_path):
    # A 24 GB Radeon shows its size less 16 MiB; target 110000 is gfx1100.
    card(
        tmp_path,
        24 * GIB - 16 * 2**20,
        110000,
        mem_info_vram_used=GIB,
        current_link_speed="16.0 GT/s PCIe",
        current_link_width=16,
    )
    (device,), absent = amd.read(tmp_path)
    assert device.gpu.name == "Radeon RX 7900 XTX"
    assert device.held_bytes == GIB
    assert (device.link.generation, device.link.lanes, device.link.max_lanes) == (4, 16, None)
    assert absent == ()
    assert usable(device).usable_bytes.likely < 23 * GIB


def test_mi300x_and_mi210_by_target(tmp_path):
    card(tmp_path / "a", 192 * GIB, 90402)
    assert amd.read(tmp_path / "a")[0][0].gpu.name == "Instinct MI300X"
    card(tmp_path / "b", 64 * GIB, 90010)  # the step is hexadecimal: gfx90a
    assert amd.read(tmp_path / "b")[0][0].gpu.architecture == "CDNA 2.0"


def test_an_apu_counts_what_is_mapped_to_it(tmp_path):
    # Measured on Strix Halo: carve-out 4 GiB, GTT 96 GiB (ttm.pages_limit=25165824).
    card(tmp_path, 4 * GIB, 110501, mem_info_gtt_total=96 * GIB)
    (device,), _ = amd.read(tmp_path)
    assert device.gpu.name.startswith("Ryzen AI Max+")
    assert usable(device).visible_bytes.likely == 96 * GIB


def test_a_card_without_a_known_name(tmp_path):
    card(tmp_path, 16 * GIB)
    (device,), _ = amd.read(tmp_path)
    assert device.gpu.memory_marketed_bytes == 16 * GIB


def test_no_amd(tmp_path):
    lay(tmp_path, {f"{CARD}/vendor": "0x10de"})
    devices, absent = amd.read(tmp_path)
    assert devices == ()
    assert absent[0].reason == "no AMD GPU in /sys/class/drm"
    lay(tmp_path, {f"{CARD}/vendor": "0x1002"})
    assert "no memory size" in amd.read(tmp_path)[1][0].reason


def test_detect_with_only_an_amd_card(tmp_path):
    card(tmp_path, 192 * GIB, 90402)
    lay(tmp_path, {"proc/meminfo": meminfo(64)})
    machine = detect(tmp_path, FakeNvml(init_error=NO_LIBRARY), {})
    assert [device.gpu.vendor for device in machine.gpus] == ["AMD"]
    assert [absent.vendor for absent in machine.absent] == ["NVIDIA"]
