"""Host memory from fake trees: what is read, and what is left unknown."""

from __future__ import annotations

import sys

import pytest
from tests.support.trees import GIB, SHM_MOUNT, V2_MOUNT, lay, meminfo

from loadmaster.sensors import host

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max locked memory         {soft}              8388608              bytes
"""


def test_memory_swap_and_limits(tmp_path):
    lay(
        tmp_path,
        {
            "proc/meminfo": meminfo(64, available_gib=40, swap_gib=8),
            "proc/version": "Linux version 6.8.0",
            "proc/self/limits": LIMITS.format(soft="65536"),
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": V2_MOUNT.format(inside="/") + "\n" + SHM_MOUNT,
            "sys/fs/cgroup/memory.max": 16 * GIB,
            "sys/fs/cgroup/memory.current": 4 * GIB,
            "dev/shm/x": "",
        },
    )
    seen = host.read(tmp_path)
    assert (seen.ram_total_bytes, seen.ram_available_bytes, seen.swap_total_bytes) == (
        64 * GIB,
        40 * GIB,
        8 * GIB,
    )
    assert (seen.cgroup_limit_bytes, seen.cgroup_used_bytes, seen.usable_ram_bytes) == (
        16 * GIB,
        4 * GIB,
        12 * GIB,
    )
    assert (seen.memlock_bytes, seen.memlock_unlimited) == (65536, False)
    assert seen.shm_total_bytes >= seen.shm_free_bytes >= 0
    assert (seen.platform, seen.container) == ("linux", None)


def test_an_empty_tree_is_unknown_and_never_zero(tmp_path):
    seen = host.read(tmp_path)
    assert seen.ram_total_bytes is None
    assert seen.swap_total_bytes is None
    assert seen.shm_total_bytes is None
    assert seen.cgroup_version is None
    assert seen.memlock_bytes is None


def test_unlimited_locked_memory(tmp_path):
    lay(tmp_path, {"proc/self/limits": LIMITS.format(soft="unlimited")})
    assert host.read(tmp_path).memlock_unlimited


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": ""}, "podman"),
        ({"run/systemd/container": "lxc"}, "lxc"),
        ({"proc/1/cgroup": "0::/kubepods.slice/pod1"}, "kubernetes"),
        ({"proc/self/cgroup": "4:memory:/docker/abc"}, "docker"),
        ({"proc/self/mountinfo": "1 0 0:1 / / rw - overlay overlay rw"}, "container"),
        ({"proc/self/cgroup": "0::/user.slice"}, None),
    ],
)
def test_containers(tmp_path, files, kind):
    assert host.read(lay(tmp_path, files)).container == kind


def test_wsl(tmp_path):
    lay(tmp_path, {"proc/version": "Linux version 5.15.90.1-microsoft-standard-WSL2"})
    assert host.platform(tmp_path) == "wsl"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine_agrees_with_psutil():
    import psutil

    seen = host.read()
    assert seen.ram_total_bytes == psutil.virtual_memory().total
    assert seen.swap_total_bytes == psutil.swap_memory().total
    assert 0 < seen.ram_available_bytes <= seen.ram_total_bytes
    assert seen.cores >= 1
