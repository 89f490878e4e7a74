"""Control groups laid out as real machines have them: version 2, version 1, both, nested, in namespaces, malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trees import GIB, V1_MOUNT, V2_MOUNT, lay

from loadmaster.sensors import cgroups

V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/memory"
NO_LIMIT_V1 = 9223372036854771712  # what version 1 prints: 2**63 rounded down to a page


def v2(tmp_path, path, files, inside="/"):
    lay(
        tmp_path,
        {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": V2_MOUNT.format(inside=inside)}
        | {f"{V2}{name}": content for name, content in files.items()},
    )
    return cgroups.read(tmp_path, 64 * GIB)


def v1(tmp_path, path, files, inside="/", extra=""):
    lay(
        tmp_path,
        {"proc/self/cgroup": f"4:memory:{path}{extra}", "proc/self/mountinfo": V1_MOUNT.format(inside=inside)}
        | {f"{V1}{name}": content for name, content in files.items()},
    )
    return cgroups.read(tmp_path, 64 * GIB)


def test_v2_leaf_limit(tmp_path):
    found = v2(
        tmp_path,
        "/job",
        {"/job/memory.max": 8 * GIB, "/job/memory.current": 3 * GIB, "/job/memory.high": "max"},
    )
    assert (found.version, found.path) == ("v2", "/job")
    assert (found.limit_bytes, found.used_bytes, found.high_bytes) == (8 * GIB, 3 * GIB, None)


def test_v2_page_cache_that_can_be_dropped_is_not_use(tmp_path):
    stat = f"anon {2 * GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}"
    found = v2(
        tmp_path,
        "/",
        {"/memory.max": 8 * GIB, "/memory.current": 5 * GIB, "/memory.stat": stat, "/memory.high": 7 * GIB},
    )
    assert found.used_bytes == 3 * GIB  # 5 - 2 inactive
    assert found.high_bytes == 7 * GIB


def test_v2_max_everywhere_is_no_limit(tmp_path):
    found = v2(tmp_path, "/a/b", {"/a/b/memory.max": "max", "/a/b/memory.current": 1, "/a/memory.max": "max"})
    assert found.limit_bytes is None
    assert found.path == "/a/b"


def test_v2_the_parent_binds_when_the_leaf_says_max(tmp_path):
    found = v2(
        tmp_path,
        "/slice/job",
        {
            "/slice/job/memory.max": "max",
            "/slice/job/memory.current": GIB,
            "/slice/memory.max": 4 * GIB,
            "/slice/memory.current": 3 * GIB,
        },
    )
    assert (found.path, found.limit_bytes, found.used_bytes) == ("/slice", 4 * GIB, 3 * GIB)


def test_v2_the_level_with_the_least_left_binds(tmp_path):
    # The leaf has the smaller limit (8 < 16) and 6 GiB left; its parent is shared and has 1 GiB left.
    found = v2(
        tmp_path,
        "/pod/box",
        {
            "/pod/box/memory.max": 8 * GIB,
            "/pod/box/memory.current": 2 * GIB,
            "/pod/memory.max": 16 * GIB,
            "/pod/memory.current": 15 * GIB,
        },
    )
    assert (found.path, found.limit_bytes) == ("/pod", 16 * GIB)


def test_v2_private_namespace(tmp_path):
    found = v2(tmp_path, "/", {"/memory.max": 2 * GIB, "/memory.current": GIB})
    assert (found.path, found.limit_bytes) == ("/", 2 * GIB)


def test_v2_mounted_from_inside_the_hierarchy(tmp_path):
    found = v2(
        tmp_path, "/docker/abc", {"/memory.max": 2 * GIB, "/memory.current": GIB}, inside="/docker/abc"
    )
    assert found.limit_bytes == 2 * GIB


def test_v2_path_above_the_namespace(tmp_path):
    assert v2(tmp_path, "/../other", {"/memory.max": 2 * GIB, "/memory.current": 1}).limit_bytes == 2 * GIB


def test_zero_is_a_limit_and_more_than_the_machine_is_none(tmp_path):
    assert v2(tmp_path / "zero", "/", {"/memory.max": 0, "/memory.current": 0}).limit_bytes == 0
    assert v2(tmp_path / "more", "/", {"/memory.max": 65 * GIB, "/memory.current": 0}).limit_bytes is None


def test_v2_swap(tmp_path):
    found = v2(tmp_path, "/", {"/memory.max": GIB, "/memory.current": 0, "/memory.swap.max": 0})
    assert found.swap_limit_bytes == 0


def test_v1_limit_and_cache(tmp_path):
    found = v1(
        tmp_path,
        "/docker/x",
        {
            "/docker/x/memory.limit_in_bytes": 8 * GIB,
            "/docker/x/memory.usage_in_bytes": 5 * GIB,
            "/docker/x/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\nhierarchical_memory_limit {8 * GIB}",
            "/docker/x/memory.memsw.limit_in_bytes": 12 * GIB,
        },
    )
    assert (found.version, found.limit_bytes, found.used_bytes) == ("v1", 8 * GIB, 4 * GIB)
    assert found.swap_limit_bytes == 4 * GIB  # memsw counts both


def test_v1_largest_number_is_no_limit(tmp_path):
    files = {"/memory.limit_in_bytes": NO_LIMIT_V1, "/memory.usage_in_bytes": 5}
    assert v1(tmp_path, "/", files).limit_bytes is None


def test_v1_a_hidden_parent_shows_in_the_hierarchical_limit(tmp_path):
    files = {
        "/memory.limit_in_bytes": NO_LIMIT_V1,
        "/memory.usage_in_bytes": 5,
        "/memory.stat": f"hierarchical_memory_limit {3 * GIB}",
    }
    assert v1(tmp_path, "/", files).limit_bytes == 3 * GIB


def test_v1_path_that_is_not_mounted_here_falls_to_the_top(tmp_path):
    files = {"/memory.limit_in_bytes": 2 * GIB, "/memory.usage_in_bytes": 5}
    assert v1(tmp_path, "/docker/elsewhere", files).limit_bytes == 2 * GIB


def test_hybrid_reads_the_hierarchy_that_has_the_files(tmp_path):
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:name=systemd:/\n0::/",
            "proc/self/mountinfo": V1_MOUNT.format(inside="/")
            + "\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            "sys/fs/cgroup/unified/cgroup.procs": "1",
            f"{V1}/job/memory.limit_in_bytes": 8 * GIB,
            f"{V1}/job/memory.usage_in_bytes": 1 * GIB,
        },
    )
    found = cgroups.read(tmp_path, 64 * GIB)
    assert (found.version, found.path, found.limit_bytes) == ("hybrid", "/job", 8 * GIB)


def test_escaped_mount_points(tmp_path):
    lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "proc/self/mountinfo": r"30 23 0:26 / /my\040groups rw - cgroup2 cgroup2 rw",
            "my groups/memory.max": GIB,
        },
    )
    assert cgroups.read(tmp_path, None).limit_bytes == GIB


def test_nothing_to_read(tmp_path):
    assert cgroups.read(tmp_path, None) is None


@pytest.mark.parametrize("content", ["", "abc", "-1", "1.5", "٣", "9" * 400])
def test_limits_that_are_no_numbers(tmp_path, content):
    found = v2(
        tmp_path,
        "/",
        {"/memory.max": content, "/memory.current": "x", "/memory.stat": "inactive_file\nx y z"},
    )
    assert found is None or found.limit_bytes is None


@given(st.text(max_size=80), st.text(max_size=120))
def test_malformed_files_never_crash(group, mounts):
    assert isinstance(cgroups._paths(group), dict)
    assert isinstance(cgroups._mounts(mounts), list)
