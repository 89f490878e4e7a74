"""The terms of what a job can use: hand arithmetic on totals that were seen, and properties that always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import UnknownNameError
from loadmaster.hardware import Device, Host, all_gpus, find_gpu, get_gpu, usable
from loadmaster.records import Interval, replace

MIB = 1024**2
GIB = 1024**3


def test_rtx_4090_by_hand():
    # CUDA total 24210 MiB (deviceQuery: 25386352640 bytes) - context 390 MiB = 23820 MiB likely.
    terms = usable(find_gpu("4090"))
    assert abs(terms.usable_bytes.likely - (25386352640 - 390 * MIB)) <= MIB
    # The worst: smallest total less the largest context; the best: the other way round.
    assert terms.usable_bytes.low == terms.visible_bytes.low - terms.context_bytes.high
    assert terms.usable_bytes.high == terms.visible_bytes.high - terms.context_bytes.low


def test_t4_context_is_the_measured_one():
    # 140.9 MiB after training steps on a T4, 105 MiB after init.
    context = usable(find_gpu("T4")).context_bytes
    assert context.low <= 105 * MIB
    assert context.likely == 141 * MIB


def test_an_old_driver_loads_every_kernel():
    # V100: 827 MiB (dask-cuda#104), 1007 MiB (pytorch#28394), 1.34 GiB; with lazy loading a few hundred.
    new = usable(replace(find_gpu("Tesla V100-SXM2-16GB"), driver="580.126.09")).context_bytes
    old = usable(replace(find_gpu("Tesla V100-SXM2-16GB"), driver="418.43")).context_bytes
    assert old.low <= 827 * MIB <= old.high
    assert old.low <= 1372 * MIB <= old.high
    assert new.high < old.low


@pytest.mark.parametrize(
    ("name", "ecc", "mib"),
    [
        ("T4", False, 16384),
        ("L40S", False, 49140),
        ("RTX 4500 Ada", True, 23034),
        ("T4", True, 15360),
        ("A10", True, 23028),
    ],
)
def test_ecc_on_gddr_costs_a_sixteenth(name, ecc, mib):
    # NVML totals seen in both states; the CUDA-visible total follows in the same proportion, below NVML's.
    shown = usable(replace(find_gpu(name), ecc=ecc)).visible_bytes
    assert mib * MIB * 0.965 < shown.low <= shown.high < mib * MIB


def test_ecc_changes_nothing_on_hbm():
    a100 = find_gpu("A100-SXM4-80GB")
    assert usable(replace(a100, ecc=False)) == usable(replace(a100, ecc=True))


def test_a_detected_card_uses_its_own_totals():
    # B200: NVML total 183359 MiB, reserved 735; torch shows 178.35 GiB = 182630 MiB; 612 MiB context was measured.
    b200 = replace(
        find_gpu("B200"), nvml_total_bytes=183359 * MIB, nvml_reserved_bytes=735 * MIB, held_bytes=4 * GIB
    )
    terms = usable(b200)
    assert terms.visible_bytes == Interval.exact((183359 - 735) * MIB)
    assert terms.held_bytes == Interval.exact(4 * GIB)
    assert terms.usable_bytes.likely == (183359 - 735) * MIB - terms.context_bytes.likely - 4 * GIB


def test_an_old_driver_hides_the_reserve():
    # A100-80 with a driver up to 510: NVML 81251 MiB, CUDA 81038 to 81158 MiB.
    old = replace(find_gpu("A100-SXM4-80GB"), nvml_total_bytes=81251 * MIB, driver="470.82.01")
    shown = usable(old).visible_bytes
    assert shown.low <= 81038 * MIB <= shown.high
    assert shown.low <= 81158 * MIB <= shown.high


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("A100-PCIE-40GB:1g.5gb", 4864),  # CUDA printed 4.750 GiB
        ("a100-80gb:2g.20gb", 19968),  # nvidia-smi printed 19968MiB
        ("NVIDIA H100 PCIe MIG 1g.10gb", 9984),  # nvidia-smi printed 9984MiB
        ("NVIDIA H200 MIG 1g.18gb", 16384),  # CUDA printed 16.00 GiB
        ("h100 nvl:1c.3g.47gb", 47232),  # a compute slice shares its instance's memory: 46.12 GiB
        ("a100-80gb:1g.10gb+me", 9728),
    ],
)
def test_mig_slices_show_all_their_memory(text, mib):
    device = find_gpu(text)
    assert device.partition.kind == "mig"
    assert usable(device).visible_bytes == Interval.exact(mib * MIB)


def test_a_mig_slice_without_a_reading_is_an_interval():
    # B200 3g.90gb: half of 183359 MiB at most.
    shown = usable(find_gpu("b200:3g.90gb")).visible_bytes
    assert shown.low < shown.likely < shown.high <= 183359 * MIB // 2


def test_a_profile_the_card_does_not_have():
    with pytest.raises(UnknownNameError, match=r"unknown MIG profile 'L4:1g\.10gb'"):
        find_gpu("L4:1g.10gb")
    with pytest.raises(UnknownNameError) as caught:
        find_gpu("h100:9g.99gb")
    assert "1g.10gb" in caught.value.hint


def test_vgpu_profiles():
    # nvidia-smi printed 3932 MiB for NVIDIA A10-4Q, 8192 for GRID T4-8Q; L4-12Q reserved 2027 of 12288.
    assert find_gpu("NVIDIA A10-4Q").partition.memory_bytes == 3932 * MIB
    assert find_gpu("GRID T4-8Q").partition.memory_bytes == 8192 * MIB
    shown = usable(find_gpu("L4-12Q")).visible_bytes
    assert shown.low <= (12288 - 2027) * MIB <= shown.high
    assert find_gpu("A40-48Q").partition.memory_bytes == 48 * GIB


def test_shared_memory_ends_at_what_the_host_has_left():
    host = Host(ram_total_bytes=119 * GIB, ram_available_bytes=50 * GIB)
    terms = usable(replace(find_gpu("GB10"), index=0), host)
    assert terms.usable_bytes.high == 50 * GIB
    limited = replace(host, cgroup_limit_bytes=20 * GIB, cgroup_used_bytes=5 * GIB)
    assert usable(replace(find_gpu("GB10"), index=0), limited).usable_bytes.high == 15 * GIB


def test_apple_shares_seen():
    # recommendedMaxWorkingSetSize: 11.84 GB on a 16 GB M3, 10.67 on a 16 GB M4, 107.52 GiB on a 128 GB M3/M5 Max.
    for text, seen_gib in (("m3 16gb", 11.84), ("m4 16gb", 10.67), ("m3 max 128gb", 107.52)):
        shown = usable(find_gpu(text)).visible_bytes
        assert shown.low <= seen_gib * GIB <= shown.high * 1.001


def test_usable_ram_is_the_tightest():
    assert Host().usable_ram_bytes is None
    assert Host(ram_available_bytes=5).usable_ram_bytes == 5
    assert Host(ram_available_bytes=5, cgroup_limit_bytes=9, cgroup_used_bytes=7).usable_ram_bytes == 2


sizes = st.none() | st.integers(min_value=0, max_value=2**45)


@given(
    st.sampled_from([gpu.name for gpu in all_gpus()]),
    sizes,
    sizes,
    sizes,
    st.none() | st.booleans(),
    st.sampled_from([None, "470.1", "590.2", "?"]),
)
def test_usable_is_within_visible_whatever_was_detected(name, total, reserved, held, ecc, driver):
    device = Device(
        gpu=get_gpu(name),
        nvml_total_bytes=total,
        nvml_reserved_bytes=reserved,
        held_bytes=held,
        ecc=ecc,
        driver=driver,
    )
    terms = usable(device)
    assert 0 <= terms.usable_bytes.low <= terms.usable_bytes.likely <= terms.usable_bytes.high
    assert terms.usable_bytes.high <= max(0, terms.visible_bytes.high)
    more_held = usable(replace(device, held_bytes=(held or 0) + GIB))
    assert more_held.usable_bytes.likely <= terms.usable_bytes.likely
