"""Snapshots that are written: PyTorch's own tools read them, and their numbers are ours."""

from __future__ import annotations

import base64
import json
import pickle
import pickletools
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.dryrun.alloc_conf import AllocConf, parse_alloc_conf
from loadmaster.dryrun.replaying import replay
from loadmaster.dryrun.snapshot_file import FramedEvent, snapshot_of, write_snapshot
from loadmaster.dryrun.snapshots import read_snapshot, replay_snapshot
from loadmaster.errors import BadFileError
from loadmaster.units import MIB

Dict = dict[str, Any]

STACK = [
    {"filename": "model.py", "line": 12, "name": "forward"},
    {"filename": "train.py", "line": 40, "name": "<module>"},
]
OTHER = [{"filename": "train.py", "line": 41, "name": "<module>"}]
EVENTS: list[FramedEvent] = [
    (1, 0, 30 * MIB, 0, 100, STACK),
    (1, 1, 5 * MIB + 1, 0, 101, STACK),
    (1, 2, 1000, 0, 102, OTHER),
    (1, 3, 0, 0, 103, OTHER),
    (0, 3, 0, 0, 104, OTHER),
    (0, 0, 0, 0, 105, OTHER),
    (1, 4, 16 * MIB, 0, 106, OTHER),
    (1, 5, 2 * MIB, 3, 107, STACK),
    (0, 1, 0, 0, 108, OTHER),
    (2, 0, 0, 0, 109, OTHER),
]
ANNOTATIONS = [{"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 100}]
CONFS = [AllocConf(), parse_alloc_conf("expandable_segments:True"), parse_alloc_conf("max_split_size_mb:20")]


@pytest.fixture(params=CONFS, ids=lambda conf: conf.text or "default")
def snapshot(request: pytest.FixtureRequest) -> Dict:
    return snapshot_of(EVENTS, request.param, annotations=ANNOTATIONS)


def test_the_keys_are_those_of_torch() -> None:
    # As a file of torch 2.10 has them.
    snapshot = snapshot_of(EVENTS)
    assert list(snapshot) == ["segments", "device_traces", "allocator_settings", "external_annotations"]
    assert set(snapshot["segments"][0]) == {
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
        "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
    }  # fmt: skip
    assert set(snapshot["segments"][0]["blocks"][0]) == {
        "address",
        "size",
        "requested_size",
        "state",
        "frames",
    }
    (trace,) = snapshot["device_traces"]
    for event in trace:
        assert set(event) == {
            "action", "addr", "size", "stream", "time_us", "compile_context", "user_metadata", "frames",
        }  # fmt: skip
    assert set(snapshot["allocator_settings"]) == {
        "PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments",
        "pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
        "graph_capture_record_stream_reuse", "roundup_power2_divisions",
    }  # fmt: skip


def test_the_trace_is_in_order_and_has_its_frames() -> None:
    (trace,) = snapshot_of(EVENTS)["device_traces"]
    assert [(event["action"], event["time_us"]) for event in trace] == [
        ("segment_alloc", 100), ("alloc", 100), ("segment_alloc", 101), ("alloc", 101), ("segment_alloc", 102),
        ("alloc", 102), ("free_requested", 105), ("free_completed", 105), ("alloc", 106), ("segment_alloc", 107),
        ("alloc", 107), ("free_requested", 108), ("free_completed", 108), ("segment_free", 109),
    ]  # fmt: skip
    assert trace[1]["frames"] is STACK
    assert trace[3]["size"] == 5 * MIB + 1
    assert trace[-1]["size"] == 20 * MIB


def test_living_blocks_have_their_frames() -> None:
    snapshot = snapshot_of(EVENTS)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert {block["requested_size"]: block["frames"] for block in blocks if block["state"] != "inactive"} == {
        1000: OTHER,
        16 * MIB: OTHER,
        2 * MIB: STACK,
    }
    assert all(segment["frames"] for segment in snapshot["segments"])


def test_running_out_of_memory_ends_the_trace() -> None:
    (trace,) = snapshot_of([*EVENTS, (1, 6, 40 * MIB + 1, 0, 110, STACK)], None, 80 * MIB)["device_traces"]
    oom = trace[-1]
    # Reserved: 30 MiB (16 in it), 2 small, 20 of another stream; 80 - 52 are free.
    assert (oom["action"], oom["size"], oom["device_free"]) == ("oom", 40 * MIB + 512, 28 * MIB)
    assert "addr" not in oom


def test_what_is_written_is_read_and_replayed(snapshot: Dict, tmp_path: Path) -> None:
    write_snapshot(snapshot, tmp_path / "s.pickle")
    found = read_snapshot(tmp_path / "s.pickle")
    assert found == snapshot
    done = replay_snapshot(found)
    assert done.mismatch is None
    assert done.same_blocks
    conf = parse_alloc_conf(snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
    ours = replay([event[:4] for event in EVENTS], conf)
    assert (done.reserved_bytes, done.allocated_bytes) == (ours.reserved_bytes, ours.allocated_bytes)
    assert done.peak_reserved_bytes == ours.peak_reserved_bytes


def test_the_file_is_whole_shared_and_of_protocol_4(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    write_snapshot(snapshot_of(EVENTS), path)
    opcodes = list(pickletools.genops(path.read_bytes()))
    assert (opcodes[0][0].name, opcodes[0][1]) == ("PROTO", 4)
    assert not any(opcode.name in {"GLOBAL", "STACK_GLOBAL", "REDUCE"} for opcode, _argument, _at in opcodes)
    assert sum(argument == "forward" for _opcode, argument, _at in opcodes) == 1
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_file_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="can't be written"):
        write_snapshot(snapshot_of(EVENTS), tmp_path / "missing" / "s.pickle")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadFileError, match="can't be written"):
        write_snapshot(snapshot_of(EVENTS), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_second_device_comes_second() -> None:
    snapshot = snapshot_of(EVENTS, device=1)
    assert [len(trace) > 0 for trace in snapshot["device_traces"]] == [False, True]
    assert {segment["device"] for segment in snapshot["segments"]} == {1}
    assert replay_snapshot(snapshot, 1).same_blocks


# PyTorch's own tools


def printed(size: float) -> str:
    """As torch.cuda._memory_viz prints a size."""
    for unit in ("", "Ki", "Mi", "Gi"):
        if abs(size) < 1024:
            return f"{size:3.1f}{unit}B"
        size /= 1024
    raise AssertionError(size)


def test_segsum_finds_our_numbers(snapshot: Dict) -> None:
    from torch.cuda import _memory_viz

    text = _memory_viz.segsum(snapshot)
    conf = parse_alloc_conf(snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
    reserved = replay([event[:4] for event in EVENTS], conf).reserved_bytes
    asked = 1000 + 16 * MIB + 2 * MIB
    assert f"total_reserved: {printed(reserved)}\n" in text
    assert f"total_allocated: {printed(asked)}\n" in text
    assert f"total_free: {printed(reserved - asked)}" in text
    assert f"segments: {len(snapshot['segments'])}\n" in text


def test_trace_tells_our_events(snapshot: Dict) -> None:
    from torch.cuda import _memory_viz

    text = _memory_viz.trace(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in text
    assert text.count("free completed for") == 2
    # Oversize blocks of 20 MiB and more are not split: 16 MiB get a segment of their own, and two are given back.
    calls = {"": (4, 1), "max_split_size_mb:20": (5, 2), "expandable_segments:True": (0, 0)}
    wanted = calls[snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]]
    assert (text.count("cudaMalloc("), text.count("cudaFree(")) == wanted


def test_stacks_are_summed_up(snapshot: Dict) -> None:
    from torch.cuda import _memory_viz

    text = _memory_viz.memory(snapshot, format_flamegraph=lambda lines: lines)
    assert f"stream_3;active_allocated;train.py:40:<module>;model.py:12:forward {2 * MIB}\n" in text
    assert f"stream_0;active_allocated;train.py:41:<module> {16 * MIB}\n" in text


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_plots_hold_the_whole_snapshot(plot: str, snapshot: Dict) -> None:
    from torch.cuda import _memory_viz

    page = getattr(_memory_viz, plot)(snapshot)
    held = json.loads(re.search(r'\[\{"name": "snapshot.pickle".*?\}\]', page)[0])  # type: ignore[index]
    assert pickle.loads(base64.b64decode(held[0]["base64"])) == snapshot


@pytest.mark.parametrize("verb", ["stats", "trace", "trace_plot", "segment_plot"])
def test_the_command_line_of_the_viewer_opens_a_file(verb: str, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    path, out = tmp_path / "s.pickle", tmp_path / "out"
    write_snapshot(snapshot_of(EVENTS), path)
    command = [sys.executable, str(_memory_viz.__file__), verb, str(path)]
    if verb.endswith("plot"):
        command += ["-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out.read_text() if out.exists() else done.stdout).strip()
