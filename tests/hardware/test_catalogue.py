"""Every row of the tables against what must hold for any card, and against totals seen in real outputs."""

from __future__ import annotations

import csv

import pytest

from loadmaster import data
from loadmaster.errors import AmbiguousNameError, UnknownNameError
from loadmaster.hardware import all_gpus, find_detected, find_gpu, get_gpu, pcie_gb_per_s, tiers, usable
from loadmaster.hardware.usable import visible_memory
from loadmaster.records import replace

MIB = 1024**2
GIB = 1024**3
GPUS = all_gpus()


def rows(name):
    with data.path(name).open(newline="") as file:
        return list(csv.DictReader(file))


OBSERVED = [
    row
    for row in rows("gpu_memory_observations.csv")
    if row["value_mib"] and "(unnamed)" not in row["device_name"]
]
TOTALS = [row for row in OBSERVED if row["quantity"] in ("nvml_total", "cuda_total")]
NOT_IN_THE_CATALOGUE = {
    "NVIDIA GeForce RTX 2070 with Max-Q Design",
    "NVIDIA GeForce GTX 1650 Ti",
    "NVIDIA GeForce GTX 1050",
    "NVIDIA GeForce RTX 2050",
    "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU",
}


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_row_is_possible(gpu):
    assert gpu.source
    assert gpu.memory_marketed_bytes > 0
    for total in (
        gpu.memory_nvml_bytes,
        gpu.memory_cuda_bytes,
        gpu.memory_cuda_low_bytes,
        gpu.memory_cuda_high_bytes,
    ):
        assert total is None or 0.90 * gpu.memory_marketed_bytes < total
    if gpu.memory_nvml_bytes is not None:
        # B200 is sold as 180 GB, GB200 as 186 GB: rounded down from what NVML shows by less than half a per cent.
        assert gpu.memory_nvml_bytes <= gpu.memory_marketed_bytes * 1.005
    if gpu.memory_cuda_bytes is not None:
        assert gpu.memory_cuda_low_bytes <= gpu.memory_cuda_bytes <= gpu.memory_cuda_high_bytes
        assert gpu.memory_cuda_high_bytes < (gpu.memory_nvml_bytes or gpu.memory_marketed_bytes)
    for rate in (
        gpu.bandwidth_gb_per_s,
        gpu.fp32_tflops,
        gpu.bf16_tflops,
        gpu.fp16_tflops,
        gpu.fp8_tflops,
        gpu.tdp_w,
    ):
        assert rate is None or rate > 0


def meant_by(text):
    """The card found, or the choices given; the names of cards that share its name are in the note."""
    try:
        found = find_gpu(text)
    except AmbiguousNameError as error:
        return error.choices
    return " ".join((found.gpu.name, *found.assumed))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_spelling_finds_its_row_or_asks(gpu):
    assert find_gpu(gpu.name).gpu == gpu
    for alias in gpu.aliases:
        assert gpu.name in meant_by(alias), alias


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_job_never_gets_more_than_the_device_shows(gpu):
    terms = usable(find_gpu(gpu.name))
    for which in ("low", "likely", "high"):
        assert 0 < getattr(terms.usable_bytes, which) <= getattr(terms.visible_bytes, which)
        assert getattr(terms.visible_bytes, which) <= gpu.memory_marketed_bytes * 1.005
    assert terms.usable_bytes.low <= terms.usable_bytes.likely <= terms.usable_bytes.high


def test_names_are_unique_also_when_folded():
    from loadmaster.hardware.names import fold

    assert len({fold(gpu.name) for gpu in GPUS}) == len(GPUS)


@pytest.mark.parametrize(
    "row", TOTALS, ids=lambda row: f"{row['device_name']} {row['quantity']} {row['value_mib']}"
)
def test_every_total_seen_finds_a_card_of_that_size(row):
    total = int(float(row["value_mib"]) * MIB)
    found = find_detected(row["device_name"], total)
    if row["device_name"] in NOT_IN_THE_CATALOGUE:
        assert found.gpu.vendor == "unknown"
        assert found.gpu.memory_marketed_bytes == total
        return
    if "vgpu" in row["note"]:
        assert found.partition.kind == "vgpu"
        assert found.partition.memory_bytes == total
        return
    assert 0.90 <= total / found.gpu.memory_marketed_bytes <= 1.01, found.gpu.name
    assert any(
        row["device_name"].removeprefix("NVIDIA ").lower() in alias.lower() for alias in found.gpu.aliases
    )


@pytest.mark.parametrize(
    ("name", "mib", "expected"),
    [
        # Totals that nvidia-smi or CUDA printed for cards that share a device name.
        ("NVIDIA GeForce RTX 3060", 12288, "RTX 3060 12GB"),
        ("NVIDIA GeForce RTX 3060", 8192, "RTX 3060 8GB"),
        ("NVIDIA GeForce RTX 3080", 10240, "RTX 3080 10GB"),
        ("NVIDIA GeForce RTX 3080", 9987, "RTX 3080 10GB"),
        ("NVIDIA GeForce RTX 3080", 12288, "RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "RTX 4060 Ti 16GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 7806, "RTX 4060 Ti 8GB"),
        ("NVIDIA GeForce RTX 5060 Ti", 15848, "RTX 5060 Ti 16GB"),
        ("NVIDIA GeForce RTX 2060", 6144, "RTX 2060 6GB"),
        ("NVIDIA GeForce RTX 2060", 12288, "RTX 2060 12GB"),
        ("gfx942", 196608, "Instinct MI300X"),
        ("gfx942", 262144, "Instinct MI325X"),
        ("gfx1100", 24560, "Radeon RX 7900 XTX"),
    ],
)
def test_memory_tells_cards_of_one_name_apart(name, mib, expected):
    assert find_detected(name, mib * MIB).gpu.name == expected


def linux_cuda_totals():
    for row in OBSERVED:
        windows = "windows" in row["os_driver"].lower() or "wsl" in row["os_driver"].lower()
        elsewhere = row["device_name"] in NOT_IN_THE_CATALOGUE or row["device_name"] == "NVIDIA GB10"
        if row["quantity"] == "cuda_total" and not windows and not elsewhere:
            yield pytest.param(row, id=f"{row['device_name']} {row['value_mib']}")


@pytest.mark.parametrize("row", list(linux_cuda_totals()))
def test_visible_memory_covers_every_cuda_total_seen_on_linux(row):
    total = int(float(row["value_mib"]) * MIB)
    device = find_detected(row["device_name"], total)
    shown, _ = visible_memory(device)
    assert shown.low - MIB <= total <= shown.high + MIB
    if device.gpu.memory_nvml_bytes is None:
        return
    # The same without the catalogue's CUDA column: what the reserve of its family says about a card never measured.
    derived, origin = visible_memory(replace(device, gpu=replace(device.gpu, memory_cuda_bytes=None)))
    assert "NVML" in origin
    assert derived.low - MIB <= total <= derived.high + MIB


def test_gb10_is_the_system_memory():
    # comfyui printed 128501485568 bytes as the total of a GB10, sold with 128 GB.
    shown, _ = visible_memory(find_gpu("GB10"))
    assert shown.low <= 128501485568 <= shown.high


@pytest.mark.parametrize("name", ["contexts.csv", "reserved.csv"])
def test_intervals_are_in_order_and_have_sources(name):
    for row in rows(name):
        assert int(row["mib_low"]) <= int(row["mib_likely"]) <= int(row["mib_high"])
        assert row["source"]


def test_mig_rows_name_cards_that_exist_and_slices_that_fit():
    for row in rows("mig.csv"):
        assert row["source"]
        part, whole = row["fraction"].split("/")
        for name in row["gpus"].split(";"):
            size = get_gpu(name).memory_marketed_bytes
            if row["memory_mib"]:
                assert (
                    0.88 * size * int(part) / int(whole)
                    < int(row["memory_mib"]) * MIB
                    <= size * int(part) / int(whole)
                )


def test_unified_and_tiers_have_sources():
    for row in rows("unified.csv"):
        assert int(row["percent_low"]) <= int(row["percent_likely"]) <= int(row["percent_high"]) <= 100
        assert row["source"]
    assert len(tiers()) == len(rows("memory_tiers.csv"))
    for tier in tiers():
        assert tier.practical_gb_per_s is None or tier.basis
        assert (
            not (tier.practical_gb_per_s and tier.theoretical_gb_per_s)
            or tier.practical_gb_per_s < tier.theoretical_gb_per_s
        )


def test_pcie_rates():
    # nvbandwidth: 24.2 to 27.0 GB/s on generation 4 × 16, 55.3 to 57.6 on 5 × 16, 6.3 on 3 × 8 lanes.
    assert 24.2 <= pcie_gb_per_s(4, 16) <= 27.0
    assert 55.3 <= pcie_gb_per_s(5, 16) <= 57.6
    assert 5.6 <= pcie_gb_per_s(3, 8) <= 6.9
    assert pcie_gb_per_s(6, 16) > pcie_gb_per_s(5, 16)
    assert pcie_gb_per_s(99, 16) is None


def test_an_exact_name_is_needed_for_a_row():
    with pytest.raises(UnknownNameError):
        get_gpu("rtx4090")
