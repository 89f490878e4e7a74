"""NVIDIA detection against a stand-in for the driver: whole cards, slices, shared memory, and every way to fail."""

from __future__ import annotations

import pytest
from tests.support.nvml import (
    LOST,
    MISMATCH,
    NO_LIBRARY,
    NO_PERMISSION,
    NOT_LOADED,
    Card,
    FakeNvml,
    NVMLError,
)
from tests.support.trees import GIB, lay, meminfo

from loadmaster.hardware import Host, usable
from loadmaster.records import Interval
from loadmaster.sensors import detect, nvml

MIB = 1024**2
LINUX = Host(platform="linux", ram_total_bytes=119 * GIB, ram_available_bytes=100 * GIB)


def read(*cards, host=LINUX, **options):
    return nvml.read(host, module=FakeNvml(list(cards), **options))


def test_a_whole_card():
    # The figures of an RTX 4090: 24564 MiB by NVML, 24210 by CUDA, 354 between them.
    found = read(Card("NVIDIA GeForce RTX 4090", 24564, 354, 2048, link=(1, 16, 4, 16)))
    (device,) = found.devices
    assert (found.driver, found.cuda) == ("590.48.01", "13.1")
    assert (device.gpu.name, device.index, device.driver) == ("RTX 4090", 0, "590.48.01")
    assert device.held_bytes == 2048 * MIB
    assert device.ecc is None
    assert (device.link.generation, device.link.max_generation, device.link.lanes) == (1, 4, 16)
    terms = usable(device, LINUX)
    assert terms.visible_bytes == Interval.exact(24210 * MIB)
    assert terms.usable_bytes.likely == 24210 * MIB - terms.context_bytes.likely - 2048 * MIB


def test_cards_of_one_name_by_their_memory():
    found = read(Card("NVIDIA GeForce RTX 3060", 12288, 300), Card("NVIDIA GeForce RTX 3060", 8192, 250))
    assert [device.gpu.name for device in found.devices] == ["RTX 3060 12GB", "RTX 3060 8GB"]
    assert [device.index for device in found.devices] == [0, 1]


def test_names_as_bytes_and_ecc():
    (device,) = read(Card(b"Tesla T4", 15360, 448, ecc=1)).devices
    assert device.gpu.name == "Tesla T4"
    assert device.ecc is True
    (off,) = read(Card("Tesla T4", 16384, 454, ecc=0)).devices
    assert usable(off).visible_bytes == Interval.exact((16384 - 454) * MIB)


def test_an_old_library_without_the_reserve():
    (device,) = read(Card("NVIDIA A100-SXM4-80GB", 81251), has_v2=False, driver="470.82.01").devices
    assert device.nvml_reserved_bytes is None
    shown = usable(device).visible_bytes
    assert shown.low <= 81038 * MIB <= shown.high


def test_mig_instances_stand_for_their_card():
    parts = [Card("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728, 0, 13, uuid=f"MIG-{n}") for n in range(2)]
    parent = Card("NVIDIA A100-SXM4-80GB", 81920, 869, mig=parts)
    found = read(parent)
    assert [device.partition.profile for device in found.devices] == ["1g.10gb", "1g.10gb"]
    assert [device.uuid for device in found.devices] == ["MIG-0", "MIG-1"]
    assert usable(found.devices[0]).visible_bytes == Interval.exact(9728 * MIB)
    assert found.devices[0].held_bytes == 13 * MIB


def test_mig_profile_that_no_table_has():
    parent = Card("NVIDIA H100 PCIe", 81559, 551, mig=[Card("NVIDIA H100 PCIe MIG 5g.55gb", 55000, 0)])
    (device,) = read(parent).devices
    assert (device.gpu.name, device.partition.profile, device.partition.memory_bytes) == (
        "H100 PCIe 80GB",
        "5g.55gb",
        55000 * MIB,
    )


def test_mig_mode_without_instances_is_said():
    found = read(Card("NVIDIA A100-SXM4-80GB", 81920, 869, mig=[]))
    assert found.devices == ()
    assert found.absent[0].reason == "GPU 0 is in MIG mode and has no instances"


def test_memory_not_supported_on_gb10_is_the_system_memory():
    (device,) = read(Card("NVIDIA GB10", None, link=None)).devices
    assert device.gpu.name == "GB10 (DGX Spark)"
    assert device.nvml_total_bytes is None
    assert device.link is None
    assert usable(device, LINUX).usable_bytes.high <= 100 * GIB


@pytest.mark.parametrize(("ram", "name"), [(61.4, "Jetson AGX Orin 64GB"), (29.9, "Jetson AGX Orin 32GB")])
def test_integrated_chips_of_one_name_by_system_memory(ram, name):
    host = Host(platform="linux", ram_total_bytes=int(ram * GIB), ram_available_bytes=20 * GIB)
    (device,) = read(Card("Orin (nvgpu)", None), host=host).devices
    assert device.gpu.name == name


def test_a_card_with_total_zero_is_unknown_not_empty():
    (device,) = read(Card("NVIDIA GeForce RTX 4090", 0)).devices
    assert device.nvml_total_bytes is None
    assert usable(device).usable_bytes.likely > 20 * GIB


def test_sentinels_are_unknown():
    (device,) = read(Card("NVIDIA GeForce RTX 4090", 24564, used_mib=(2**64 - 1) // MIB)).devices
    assert device.held_bytes is None


def test_under_wsl_cuda_sees_what_nvml_sees():
    host = Host(platform="wsl")
    (device,) = read(Card("NVIDIA GeForce RTX 5070", 12227, 300), host=host).devices
    assert usable(device).visible_bytes == Interval.exact(12227 * MIB)


def test_a_vgpu():
    (device,) = read(Card("GRID T4-8Q", 8192, 1019)).devices
    assert (device.gpu.name, device.partition.kind) == ("Tesla T4", "vgpu")
    assert usable(device).visible_bytes == Interval.exact((8192 - 1019) * MIB)


def test_a_card_nobody_knows():
    (device,) = read(Card("NVIDIA Future 1", 65536, 100)).devices
    assert device.gpu.name == "NVIDIA Future 1"
    assert usable(device).visible_bytes.likely == (65536 - 100) * MIB


def test_a_modified_card_keeps_its_own_size():
    (device,) = read(Card("NVIDIA GeForce RTX 4090", 49140, 400)).devices
    assert usable(device).visible_bytes == Interval.exact(48740 * MIB)
    assert device.assumed == ("it reports 48.0 GiB, unlike the 24.0 GiB of RTX 4090",)


def test_a_lost_card_leaves_the_others():
    found = read(Card("NVIDIA L4", 23034, 469), Card("NVIDIA L4", opens=False))
    assert len(found.devices) == 1
    assert found.absent[0].reason.startswith("GPU 1 can't be opened")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NO_LIBRARY, "not installed"),
        (NOT_LOADED, "not loaded"),
        (MISMATCH, "different versions"),
        (NO_PERMISSION, "no permission"),
        (LOST, "lost"),
        (999, "can't be asked"),
        (OSError("cannot open shared object"), "cannot open shared object"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_driver_that_fails_gives_a_reason(error, says):
    found = read(init_error=error)
    assert found.devices == ()
    assert says in found.absent[0].reason


def test_a_container_without_the_library(tmp_path):
    lay(tmp_path, {"proc/driver/nvidia/version": "NVRM version: 580"})
    found = nvml.read(LINUX, tmp_path, FakeNvml(init_error=NO_LIBRARY))
    assert "container" in found.absent[0].reason


def test_a_driver_without_cards_and_a_library_without_functions():
    assert read().absent[0].reason == "the driver runs and sees no NVIDIA GPU"

    class Bare:
        def nvmlInit(self):
            """Nothing else is there."""

    assert nvml.read(LINUX, module=Bare()).devices == ()


def test_every_question_may_fail():
    class Broken(FakeNvml):
        def __getattribute__(self, name):
            if name.startswith("nvmlDeviceGet") and name not in (
                "nvmlDeviceGetCount",
                "nvmlDeviceGetHandleByIndex",
            ):
                raise NVMLError(NO_PERMISSION)
            return super().__getattribute__(name)

    found = nvml.read(LINUX, module=Broken([Card("x", 1)]))
    assert found.devices == ()
    assert found.absent[0].reason == "GPU 0 (NVIDIA GPU) tells no memory size and is not in the catalogue"


def test_a_shared_name_without_a_size_promises_the_smallest():
    (device,) = read(Card("NVIDIA GeForce RTX 3060", None)).devices
    assert device.gpu.name == "RTX 3060 8GB"
    assert device.assumed


def test_the_library_is_closed_again():
    fake = FakeNvml([Card("NVIDIA L4", 23034, 469)])
    nvml.read(LINUX, module=fake)
    assert fake.closed == 1


def test_detect_puts_it_together(tmp_path):
    lay(tmp_path, {"proc/meminfo": meminfo(64, 40), "proc/version": "Linux"})
    machine = detect(tmp_path, FakeNvml([Card("NVIDIA L4", 23034, 469)]), {})
    assert [device.gpu.name for device in machine.gpus] == ["L4"]
    assert machine.driver == "590.48.01"
    assert machine.host.ram_total_bytes == 64 * GIB
    assert [absent.vendor for absent in machine.absent] == ["AMD"]


CARDS = [Card(f"NVIDIA {name}", 23034, 469, uuid=f"GPU-{name}") for name in ("L4", "A10", "A10G")]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ["L4", "A10", "A10G"]),
        ("0,1,2", ["L4", "A10", "A10G"]),
        ("2,0", ["A10G", "L4"]),
        ("GPU-A10G", ["A10G"]),
        ("", []),
        ("-1", []),
        ("1,9,0", ["A10"]),  # what follows an entry that names nothing is not looked at
        ("GPU-A", []),  # begins two names
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices(tmp_path, value, names):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    machine = detect(tmp_path, FakeNvml(CARDS), environment)
    assert [device.gpu.name for device in machine.gpus] == names
    hidden = [absent.reason for absent in machine.absent if absent.vendor == "NVIDIA"]
    assert hidden == (
        [] if len(names) == 3 else [f"CUDA_VISIBLE_DEVICES={value} hides {3 - len(names)} of 3 GPUs"]
    )


def test_detect_here_never_raises():
    machine = detect()
    assert machine.gpus or machine.absent
    assert machine.host.platform
