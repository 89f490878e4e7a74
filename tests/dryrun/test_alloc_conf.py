"""Settings of the caching allocator: read and refused as torch 2.13 reads and refuses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from loadmaster.dryrun.alloc_conf import (
    LARGEST,
    AllocConf,
    divisions_of,
    from_environment,
    parse_alloc_conf,
    round_size,
    segment_size,
)
from loadmaster.errors import BadValueError, UnknownNameError, UsageError
from loadmaster.units import GIB, MIB

# Settings shared by all devices, whose parser is in the CPU build of torch too.
TEXTS = [
    "",
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb:-1",
    "max_split_size_mb:20.5",
    "max_split_size_mb:abc",
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb: 3 0",
    "max_split_size_mb=30",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "large_segment_size_mb:12,max_split_size_mb:12",
    "large_segment_size_mb:12,max_split_size_mb:11",
    "large_segment_size_mb:40,max_split_size_mb:30",
    "large_segment_size_mb:40,max_non_split_rounding_mb:30",
    "large_segment_size_mb:20,max_non_split_rounding_mb:19",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "roundup_power2_divisions:[256:0]",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[300:4]",
    "roundup_power2_divisions:[0:4]",
    "roundup_power2_divisions:[>:4]",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[256:1,]",
    "roundup_power2_divisions:[256:1,512:2",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:x",
    "expandable_segments:True",
    " expandable_segments : True ,",
    "expandable_segments:true",
    "expandable_segments:1",
    "expandable_segments:True;max_split_size_mb:30",
    "pinned_use_background_threads:True",
    "pinned_max_round_threshold_mb:3",
    "pinned_max_cached_size_mb:0",
]

ORACLE = """
import json, sys, torch
accepted = []
for text in json.load(sys.stdin):
    try:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        torch._C._accelerator_setAllocatorSettings(text)
        accepted.append(True)
    except (ValueError, RuntimeError):
        accepted.append(False)
print(json.dumps(accepted))
"""


def run(code: str, text: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=text, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_torch_accepts_and_refuses() -> None:
    accepted = json.loads(run(ORACLE, json.dumps(TEXTS)))
    ours = []
    for text in TEXTS:
        try:
            parse_alloc_conf(text)
            ours.append(True)
        except UsageError:
            ours.append(False)
    assert dict(zip(TEXTS, ours, strict=True)) == dict(zip(TEXTS, accepted, strict=True))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:50"},
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:30", "PYTORCH_CUDA_ALLOC_CONF": ""},
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:50"},
    ],
)
def test_the_variable_that_wins_is_torchs(environment: dict[str, str]) -> None:
    code = "import torch; print(torch._C._accelerator_getAllocatorSettings(), end='')"
    assert from_environment(environment).text == run(code, **environment)


def test_without_a_variable_everything_is_default() -> None:
    assert from_environment({"PATH": "/bin"}) == AllocConf() == parse_alloc_conf("")


def test_values() -> None:
    conf = parse_alloc_conf(
        "max_split_size_mb:128,garbage_collection_threshold:0.8,expandable_segments:True,max_non_split_rounding_mb:64,"
        "per_process_memory_fraction:0.5,backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:8,"
        "pinned_use_cuda_host_register:True,graph_capture_record_stream_reuse:False,large_segment_size_mb:12"
    )
    assert (conf.max_split_size_bytes, conf.max_non_split_rounding_bytes) == (128 * MIB, 64 * MIB)
    assert (conf.garbage_collection_threshold, conf.per_process_memory_fraction) == (0.8, 0.5)
    assert conf.expandable_segments
    assert conf.large_segment_size_bytes == 12 * MIB


def test_defaults_are_those_of_the_header() -> None:
    conf = AllocConf()
    assert (conf.max_split_size_bytes, conf.large_segment_size_bytes) == (LARGEST, 20971520)
    assert conf.max_non_split_rounding_bytes == 20971520
    assert not conf.rounds_to_divisions


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("max_split_size:30", UnknownNameError, "max_split_size_mb"),
        ("expandable_segment:True", UnknownNameError, "expandable_segments"),
        ("max_split_size_mb:10", BadValueError, "at least 20"),
        ("backend:cudaMallocAsync", UsageError, "can't be simulated"),
        ("backend:mine", BadValueError, "native or cudaMallocAsync"),
        ("pinned_num_register_threads:3", BadValueError, "power of two"),
        ("pinned_num_register_threads:256", BadValueError, "up to 128"),
        ("pinned_reserve_segment_size_mb:0", BadValueError, "more than 0"),
        ("per_process_memory_fraction:1.5", BadValueError, "0 to 1"),
        ("throw_on_cudamalloc_oom:yes", BadValueError, "True or False"),
        ("max_split_size_mb:30:", BadValueError, "comma"),
        ("expandable_segments:[True]", BadValueError, "single value"),
        ("expandable_segments:True,,max_split_size_mb:30", UnknownNameError, "','"),
    ],
)
def test_refusals_say_what_is_expected(text: str, error: type[UsageError], words: str) -> None:
    with pytest.raises(error, match=words):
        parse_alloc_conf(text)


def test_a_list_of_divisions_as_pytorchs_own_test_reads_it() -> None:
    # c10/test/core/AllocatorConfig_test.cpp: these divisions, at these sizes.
    conf = parse_alloc_conf("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]")
    wanted = {64: 8, 128: 8, 256: 16, 512: 1, 1024: 0, 2048: 8, 4096: 2, 8192: 2}
    assert {mib: divisions_of(conf, mib * MIB) for mib in wanted} == wanted


@pytest.mark.parametrize(
    ("divisions", "size", "rounded"),
    [
        # torch's documentation: 1200 with 4 divisions lies between 1024 and 2048, in steps of 256: 1280. The allocator
        # does so only above 512 bytes x divisions.
        (4, 1200 * MIB, 1280 * MIB),
        (4, 1200, 1536),
        (4, 2048, 2048),
        (4, 2049, 2560),  # 2048 in four steps of 512
        (8, 5 * MIB + 1, 5 * MIB + MIB // 2),
        (2, 5 * MIB, 6 * MIB),
        (1, 5 * MIB + 1, 5 * MIB + 512),
        (8, 2**33, 2**33),
    ],
)
def test_rounding_to_divisions(divisions: int, size: int, rounded: int) -> None:
    assert round_size(parse_alloc_conf(f"roundup_power2_divisions:{divisions}"), size) == rounded


def test_sizes_below_and_above_the_table_take_its_ends() -> None:
    conf = parse_alloc_conf("roundup_power2_divisions:[1:2,32768:8]")
    assert divisions_of(conf, 4096) == 2
    assert divisions_of(conf, 100 * GIB) == 8


def test_segments() -> None:
    conf = parse_alloc_conf("large_segment_size_mb:12")
    sizes = (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512)
    assert [segment_size(conf, size) // MIB for size in sizes] == [2, 2, 12, 12, 10, 12]
    assert [segment_size(AllocConf(), size) // MIB for size in sizes] == [2, 2, 20, 20, 10, 12]


def test_settings_of_a_snapshot() -> None:
    settings = parse_alloc_conf("roundup_power2_divisions:[256:1,>:4]").settings()
    assert settings["max_split_size"] == -1
    assert settings["roundup_power2_divisions"] == {str(2**at): 1 if at <= 8 else 4 for at in range(16)}
