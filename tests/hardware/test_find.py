"""How people, nvidia-smi, torch and clouds spell cards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import AmbiguousNameError, BadValueError, UnknownNameError, UsageError
from loadmaster.hardware import all_gpus, custom_device, find_detected, find_gpu, get_gpu, usable

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("4090", "RTX 4090", 1),
        ("RTX 4090", "RTX 4090", 1),
        ("rtx4090", "RTX 4090", 1),
        ("rtx-4090", "RTX 4090", 1),
        ("GeForce RTX 4090", "RTX 4090", 1),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 1),
        ("rtx 4090 24gb", "RTX 4090", 1),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop", 1),
        ("a100-80gb", "A100 SXM4 80GB", 1),
        ("A100-SXM4-80GB", "A100 SXM4 80GB", 1),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB", 1),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 1),
        ("A100-PCIE-40GB", "A100 PCIe 40GB", 1),
        ("H100", "H100 SXM5 80GB", 1),
        ("H100:8", "H100 SXM5 80GB", 8),
        ("8xH100", "H100 SXM5 80GB", 8),
        ("8 x H100", "H100 SXM5 80GB", 8),
        ("8×H100", "H100 SXM5 80GB", 8),
        ("H100 x8", "H100 SXM5 80GB", 8),
        ("2xA100-80GB", "A100 SXM4 80GB", 2),
        ("H100 80GB HBM3", "H100 SXM5 80GB", 1),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB", 1),
        ("h100 nvl", "H100 NVL", 1),
        ("rtx 3060 12gb", "RTX 3060 12GB", 1),
        ("rtx4060ti-16gb", "RTX 4060 Ti 16GB", 1),
        ("L4", "L4", 1),
        ("T4", "Tesla T4", 1),
        ("Tesla T4", "Tesla T4", 1),
        ("a10g", "A10G", 1),
        ("m3 max", "Apple M3 Max", 1),
        ("Apple M3 Max", "Apple M3 Max", 1),
        ("GB10", "GB10 (DGX Spark)", 1),
        ("dgx spark", "GB10 (DGX Spark)", 1),
        ("mi300x", "Instinct MI300X", 1),
        ("AMD Instinct MI300X", "Instinct MI300X", 1),
        ("MI300X:8", "Instinct MI300X", 8),
        ("gfx1151", "Ryzen AI Max+ 395 (Radeon 8060S)", 1),
        ("7900xtx", "Radeon RX 7900 XTX", 1),
        ("RTX6000-Ada", "RTX 6000 Ada", 1),
        ("v5e", "TPU v5e", 1),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB", 1),
        ("Intel(R) Arc(TM) B580 Graphics", "Arc B580", 1),
    ],
)
def test_spellings(text, name, count):
    found = find_gpu(text)
    assert (found.gpu.name, found.count) == (name, count)


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("a100", {"A100 SXM4 40GB", "A100 SXM4 80GB"}),
        ("A100:8", {"A100 SXM4 40GB", "A100 SXM4 80GB"}),
        ("3060", {"RTX 3060 8GB", "RTX 3060 12GB"}),
        ("NVIDIA GeForce RTX 3080", {"RTX 3080 10GB", "RTX 3080 12GB"}),
        ("4060 ti", {"RTX 4060 Ti 8GB", "RTX 4060 Ti 16GB"}),
        ("v100", {"Tesla V100 SXM2 16GB", "Tesla V100 SXM2 32GB"}),
        ("rtx 6000", {"Quadro RTX 6000", "RTX 6000 Ada"}),
        ("gfx942", {"Instinct MI300A", "Instinct MI300X", "Instinct MI325X"}),
        ("rtx 3050", {"RTX 3050 6GB", "RTX 3050 8GB"}),
        ("orin", {"Jetson AGX Orin 64GB", "Jetson Orin NX 8GB"}),
        ("1g.10gb", {"A100 SXM4 80GB:1g.10gb", "H100 SXM5 80GB:1g.10gb"}),
        ("a100:3g.40gb", {"A100 SXM4 80GB:3g.40gb"}),
    ],
)
def test_ambiguous_names_ask_with_choices_that_are_accepted(text, some):
    with pytest.raises(AmbiguousNameError) as caught:
        find_gpu(text)
    assert some <= set(caught.value.choices)
    for choice in caught.value.choices:
        assert find_gpu(choice).name == choice


def test_a_default_among_several_is_said_and_is_never_the_larger():
    for gpu in all_gpus():
        for text in (gpu.name, *gpu.aliases):
            try:
                found = find_gpu(text)
            except AmbiguousNameError:
                continue
            for line in found.assumed:
                _, separator, others = line.partition(" is taken to be ")
                if not separator:
                    continue
                named = others.partition("(")[2] if "(" in others else ""
                for other in all_gpus():
                    if (
                        f"{other.name}," in named
                        or f"{other.name} is named" in named
                        or f"{other.name} are named" in named
                    ):
                        assert found.gpu.memory_marketed_bytes <= other.memory_marketed_bytes


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("rtx4900", "RTX 4090"),
        ("4091", "RTX 4090"),
        ("mi300xx", "Instinct MI300X"),
        ("4090 48gb", "RTX 4090"),
        ("teslat44", "Tesla T4"),
        ("Jetson Orin", "Jetson AGX Orin 64GB"),
        ("Jetson Orin", "Jetson AGX Orin 32GB"),
        ("orin agx 64", "Jetson AGX Orin 64GB"),
        ("nano orin", "Jetson Orin Nano 8GB"),
    ],
)
def test_unknown_names_suggest(text, nearest):
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(text)
    assert nearest in caught.value.near
    assert str(caught.value).startswith(f"unknown GPU {text!r}; did you mean ")


def test_the_sentence_of_an_unknown_name():
    with pytest.raises(UnknownNameError, match=r"^unknown GPU 'rtx4900'; did you mean RTX 4090\?$"):
        find_gpu("rtx4900")


@pytest.mark.parametrize(
    "text", ["", "   ", "x" * 1000, "h100\x1b[2J", "0xH100", "H100:0", "5000 x H100", "H100:9999"]
)
def test_bad_values(text):
    with pytest.raises(BadValueError):
        find_gpu(text)


def test_memory_shared_with_the_cpu_takes_a_size():
    # Above 36 GB Metal's default share is about three quarters: 48 of 64 GiB (gpustack#1375).
    found = find_gpu("m3 max 64gb")
    assert found.gpu.name == "Apple M3 Max"
    assert found.system_memory_bytes == 64 * GIB
    assert usable(found).visible_bytes.likely == 48 * GIB
    assert any("128 GiB" in line for line in find_gpu("m3 max").assumed)
    with pytest.raises(UnknownNameError):
        find_gpu("m3 max 999gb")


@pytest.mark.parametrize(
    ("size", "expected"), [("24GiB", 24 * GIB), ("24GB", 24 * 10**9), (8 * GIB, 8 * GIB)]
)
def test_a_size_makes_a_device(size, expected):
    device = custom_device(size)
    terms = usable(device)
    assert terms.visible_bytes.low == terms.visible_bytes.high == expected
    assert terms.usable_bytes.likely < expected
    assert device.assumed


@pytest.mark.parametrize(
    "size",
    [
        "",
        "many",
        "0",
        "-1GiB",
        0,
        -5,
        2**63,
        "9999999TiB",
        b"",
        [],
        {},
        None,
        True,
        math.nan,
        math.inf,
        2e9 + 0.5,
    ],
)
def test_sizes_that_are_none(size):
    with pytest.raises(BadValueError):
        custom_device(size)


@pytest.mark.parametrize("size", ["24", " 24 ", "1.5", 24, 1.5, 24.0, 2**20 - 1])
def test_a_number_too_small_to_be_bytes_asks_for_its_unit(size):
    with pytest.raises(BadValueError, match=r"of what\? Say 24GiB or 24GB$"):
        custom_device(size)


def outcome(text):
    """The device, or the usage error: anything else is a crash."""
    try:
        return find_gpu(text)
    except UsageError as error:
        return error


@given(st.text(max_size=60))
def test_any_text_finds_or_says_why_in_one_line(text):
    found = outcome(text)
    assert "\n" not in str(found) if isinstance(found, UsageError) else found.count >= 1


@given(st.text(max_size=60), st.integers(min_value=0, max_value=2**50) | st.none())
def test_detection_names_anything(text, total):
    found = find_detected(text, total)
    assert found.device_name == text
    terms = usable(found)
    assert 0 <= terms.usable_bytes.low <= terms.usable_bytes.likely <= terms.usable_bytes.high


@given(st.sampled_from([gpu.name for gpu in all_gpus()]), st.data())
def test_slips_never_crash(name, data):
    where = data.draw(st.integers(0, len(name) - 1))
    slipped = name[:where] + data.draw(st.sampled_from(["", "x", "-", " ", "9", ":"])) + name[where + 1 :]
    assert outcome(slipped)


def test_get_gpu_is_the_row():
    assert get_gpu("RTX 4090").memory_nvml_bytes == 24564 * 1024**2
