"""Real memory snapshots replayed: every address and every segment event, and the state at the end to the byte."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from loadmaster.dryrun import rebuilding
from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.allocator import Allocator, Block
from loadmaster.dryrun.reports import segments
from loadmaster.dryrun.snapshot_file import Recorder
from loadmaster.dryrun.snapshots import read_snapshot, rebuild, replay_snapshot
from loadmaster.errors import BadFileError, UsageError
from loadmaster.units import MIB

FIXTURES = Path(__file__).parent / "fixtures"
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
)  # fmt: skip
STATES = ("inactive", "active_allocated", "active_pending_free")
Dict = dict[str, Any]


def unpack(name: str) -> Dict:
    """A snapshot's dict from the numbers that scripts/reduce_snapshot.py kept."""
    numbers = json.loads(gzip.decompress((FIXTURES / f"{name}.json.gz").read_bytes()))
    found: Dict = {"segments": [], "device_traces": [], "allocator_settings": numbers["settings"]}
    for device, address, total, allocated, stream, small, is_expandable, blocks in numbers["segments"]:
        rows = [blocks[at : at + 4] for at in range(0, len(blocks), 4)]
        found["segments"].append(
            {
                "device": device, "address": address, "total_size": total, "allocated_size": allocated,
                "stream": stream, "segment_type": "small" if small else "large", "segment_pool_id": (0, 0),
                "is_expandable": bool(is_expandable),
                "blocks": [
                    {"address": address + at, "size": size, "requested_size": asked, "state": STATES[state]}
                    for at, size, asked, state in rows
                ],
            }
        )  # fmt: skip
    for actions, sizes, steps, streams in numbers["traces"]:
        trace, address = [], 0
        for at, (action, size, step) in enumerate(zip(actions, sizes, steps, strict=True)):
            address += step
            event = {"action": ACTIONS[int(action)], "size": size, "stream": streams[at] if streams else 0}
            event["device_free" if event["action"] == "oom" else "addr"] = address
            trace.append(event)
        found["device_traces"].append(trace)
    return found


@pytest.fixture(scope="module", params=["inference_2023", "adamw_step", "oom_expandable"])
def snapshot(request: pytest.FixtureRequest) -> Dict:
    return unpack(request.param)


COUNTS = {  # events of each kind, counted when the files were recorded: alloc, segment events
    ("inference_2023", 0): (3505, 152),
    ("adamw_step", 0): (6771, 783),
    ("oom_expandable", 0): (2434, 175),
    ("oom_expandable", 1): (199, 46),
    ("oom_expandable", 2): (392, 78),
}


@pytest.mark.parametrize(("name", "device"), COUNTS)
def test_a_real_trace_is_replayed_to_the_byte(name: str, device: int) -> None:
    snapshot = unpack(name)
    done = replay_snapshot(snapshot, device)
    assert done.mismatch is None
    assert (done.addresses, done.segment_events) == COUNTS[name, device]
    assert (done.unknown_blocks, done.ambiguous_blocks) == (0, 0)
    own = [segment for segment in snapshot["segments"] if segment["device"] == device]
    assert (
        done.reserved_bytes == done.recorded_reserved_bytes == sum(segment["total_size"] for segment in own)
    )
    assert done.allocated_bytes == done.recorded_allocated_bytes == sum(s["allocated_size"] for s in own)
    assert done.same_blocks


def test_the_card_was_full_when_memory_ran_out() -> None:
    snapshot = unpack("oom_expandable")
    (oom,) = [event for event in snapshot["device_traces"][1] if event["action"] == "oom"]
    done = replay_snapshot(snapshot, 1)
    assert oom["size"] > oom["device_free"]
    # An A100 of 79.17 GiB had at most this left beside what was reserved.
    assert 79 * 2**30 - done.peak_reserved_bytes - oom["device_free"] < 1.5 * 2**30
    assert done.peak_allocated_bytes > 0.99 * done.peak_reserved_bytes


def test_a_trace_without_its_front_is_replayed_as_well(snapshot: Dict) -> None:
    """A ring buffer forgets: whatever part is left, the state at its start is found and the rest comes out the same."""
    chance = random.Random(4)
    for device, trace in enumerate(snapshot["device_traces"]):
        for _ in range(6 if trace else 0):
            cut = chance.randrange(len(trace))
            while trace[cut - 1]["action"].startswith("segment") or trace[cut]["action"] == "free_completed":
                cut -= 1
            traces = list(snapshot["device_traces"])
            traces[device] = trace[cut:]
            done = replay_snapshot({**snapshot, "device_traces": traces}, device)
            assert done.mismatch is None
            assert done.same_blocks


def test_ambiguous_sizes_are_counted_and_right_here(snapshot: Dict) -> None:
    trace = snapshot["device_traces"][0]
    whole, live, _start = rebuild(snapshot)
    sizes: dict[int, int] = {address: block.size for address, block in live.items()}
    middle = len(trace) // 2
    while trace[middle]["action"] != "alloc" or trace[middle - 1]["action"].startswith("segment"):
        middle += 1
    assert whole.reserved_bytes == replay_snapshot(snapshot).start_reserved_bytes
    _allocator, later, start = rebuild({**snapshot, "device_traces": [trace[middle:]]})
    born = {}
    for event in trace[:middle]:
        if event["action"] == "alloc":
            born[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            born.pop(event["addr"], None)
            sizes.pop(event["addr"], None)
    assert set(later) == set(born) | set(sizes)
    assert start.ambiguous <= start.unknown
    for address, size in born.items():
        assert 0 <= later[address].size - size <= MIB + 512


def test_a_wrong_rule_is_noticed(snapshot: Dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is sharp: one byte more or one place further is a mismatch that says where."""
    trace = [dict(event) for event in snapshot["device_traces"][0]]
    at = next(
        i for i, event in enumerate(trace) if event["action"] in {"segment_alloc", "segment_map"} and i > 100
    )
    trace[at]["size"] *= 2
    with pytest.raises(UsageError, match="gaps"):
        replay_snapshot({**snapshot, "device_traces": [trace]})
    monkeypatch.setattr(rebuilding, "round_size", lambda conf, size: (size + 1023) // 1024 * 1024)
    original = Allocator.malloc
    monkeypatch.setattr(
        Allocator, "malloc", lambda self, size, *rest: original(self, (size + 1023) // 1024 * 1024, *rest)
    )
    done = replay_snapshot(snapshot)
    assert done.mismatch is not None
    assert done.mismatch_at is not None
    assert 0 < done.mismatch_at < done.events


def test_a_missing_segment_event_is_a_mismatch_or_a_gap(snapshot: Dict) -> None:
    trace = snapshot["device_traces"][0]
    at = [i for i, event in enumerate(trace) if event["action"] in {"segment_alloc", "segment_map"}][5]
    done = replay_snapshot({**snapshot, "device_traces": [trace[:at] + trace[at + 1 :]]})
    assert not done.same_blocks or done.mismatch is not None or done.start_reserved_bytes


def test_a_missing_free_is_a_gap(snapshot: Dict) -> None:
    trace = [event for event in snapshot["device_traces"][0] if not event["action"].startswith("free")]
    with pytest.raises(UsageError, match="gaps") as caught:
        replay_snapshot({**snapshot, "device_traces": [trace]})
    assert "skip_actions" in str(caught.value.hint)


# The rebuild and the replay on runs of the model itself, with several streams, pools that are pending, and all settings.


def simulate(text: str, seed: int, capacity: int) -> Dict:
    """A random run, recorded."""
    chance = random.Random(seed)
    recorder = Recorder(Allocator(parse_alloc_conf(text), capacity))
    live: list[int] = []
    for key in range(400):
        if live and chance.random() < 0.5:
            recorder.free(live.pop(chance.randrange(len(live))), key, [])
        size = chance.choice(
            (chance.randrange(1, 4096), chance.randrange(1, 3 * MIB), chance.randrange(1, 50 * MIB))
        )
        if recorder.allocator.allocated_bytes + size < capacity // 3:
            recorder.alloc(key, size, chance.choice((0, 0, 0, 5)), key, [])
            live.append(key)
        elif chance.random() < 0.1:
            recorder.empty_cache(key, [])
    return recorder.snapshot()


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "roundup_power2_divisions:4"])
@pytest.mark.parametrize("seed", range(5))
def test_a_simulated_run_is_replayed(text: str, seed: int) -> None:
    snapshot = simulate(text, seed, 600 * MIB)
    done = replay_snapshot(snapshot)
    assert done.mismatch is None
    assert done.same_blocks
    assert done.segment_events == sum("segment" in event["action"] for event in snapshot["device_traces"][0])
    assert (done.start_reserved_bytes, done.start_allocated_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "text", ["max_split_size_mb:20", "roundup_power2_divisions:2", "large_segment_size_mb:12"]
)
def test_settings_that_a_snapshot_does_not_tell_are_a_mismatch(text: str, seed: int) -> None:
    snapshot = simulate(text, seed, 600 * MIB)
    del snapshot["allocator_settings"]
    done = replay_snapshot(snapshot)
    assert done.mismatch is not None
    assert done.mismatch_at is not None
    assert 0 <= done.mismatch_at < done.events


MALLOC = {"action": "alloc", "stream": 0}
SEGMENT = {"action": "segment_alloc", "stream": 0, "addr": 0x1000000, "size": 30 * MIB}


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            [SEGMENT, {**MALLOC, "addr": 0x1000200, "size": MIB * 30 - 512}],
            "is at 0x1000000 and was at 0x1000200",
        ),
        ([SEGMENT, {**MALLOC, "action": "oom", "size": 30 * MIB}], "finds a block where the run had none"),
        (
            [{**SEGMENT, "size": 32 * MIB}, {**MALLOC, "addr": 0x1000000, "size": 30 * MIB}],
            "is expected, and",
        ),
        ([SEGMENT], "is expected, and nothing happens"),
    ],
)
def test_a_mismatch_says_what_differs(trace: list[Dict], words: str) -> None:
    size = trace[0]["size"]
    born = [event for event in trace if event["action"] == "alloc"]
    at = born[0]["addr"] - 0x1000000 if born else size
    blocks = [{"size": at, "requested_size": 0, "state": "inactive"}] if at else []
    if at < size:
        blocks.append({"size": size - at, "requested_size": size - at, "state": "active_allocated"})
    segment = {
        "address": 0x1000000, "total_size": size, "allocated_size": size, "stream": 0, "segment_type": "large",
        "blocks": blocks,
    }  # fmt: skip
    done = replay_snapshot({"segments": [segment], "device_traces": [trace]})
    assert done.mismatch is not None
    assert words in done.mismatch
    assert not done.same_blocks or words.endswith("happens")


def test_no_driver_call_where_the_model_needs_one_is_a_mismatch() -> None:
    """A segment that was there before the trace, whose only free block is too small by the model's rounding."""
    blocks = [{"size": 30 * MIB - 100, "requested_size": 30 * MIB - 100, "state": "active_allocated"}]
    segment = {
        "address": 0x1000000, "total_size": 30 * MIB - 100, "allocated_size": 0, "stream": 0,
        "segment_type": "large", "blocks": blocks,
    }  # fmt: skip
    trace = [{**MALLOC, "addr": 0x1000000, "size": 30 * MIB - 100}]
    done = replay_snapshot({"segments": [segment], "device_traces": [trace]})
    assert done.mismatch is not None
    assert "needs memory that the driver wasn't asked for" in done.mismatch


def test_blocks_that_wait_for_a_stream_are_replayed_when_they_did() -> None:
    allocator = Allocator(streams_lag=True, log=[])
    recorder = Recorder(allocator)
    recorder.alloc(0, 30 * MIB, 0, 1, [])
    recorder.alloc(1, 30 * MIB, 0, 2, [])
    for key in (0, 1):
        allocator.record_stream(recorder.block(key), 7)
    recorder.free(0, 3, [])
    recorder.alloc(2, 30 * MIB, 0, 4, [])  # another segment: the first block waits
    recorder.synchronize(5)
    recorder.alloc(3, 30 * MIB, 0, 6, [])
    recorder.free(1, 7, [])
    snapshot = recorder.snapshot()
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert actions[4:] == [
        "free_requested",
        "segment_alloc",
        "alloc",
        "free_completed",
        "alloc",
        "free_requested",
    ]
    done = replay_snapshot(snapshot)
    assert done.mismatch is None
    assert done.same_blocks
    assert (done.addresses, done.segment_events) == (4, 3)
    # From after the first free on: one block waits at the start and one at the end.
    later = {**snapshot, "device_traces": [snapshot["device_traces"][0][5:]]}
    begun, live, start = rebuild(later)
    assert (start.unknown, begun.active_bytes - begun.allocated_bytes) == (1, 30 * MIB)
    assert len(live) == 2
    assert replay_snapshot(later).same_blocks


def test_private_pools_are_known_by_their_segments() -> None:
    recorder = Recorder(Allocator())
    private = recorder.allocator.malloc(30 * MIB, pool_id=(0, 1))
    recorder.trace = [
        {"action": "segment_alloc", "addr": private.address, "size": 30 * MIB, "stream": 0},
        {"action": "alloc", "addr": private.address, "size": 30 * MIB, "stream": 0},
    ]
    recorder.alloc(0, 25 * MIB, 0, 1, [])
    done = replay_snapshot(recorder.snapshot())
    assert (done.mismatch, done.same_blocks, done.addresses) == (None, True, 2)


def test_old_snapshots_have_no_addresses_in_their_blocks() -> None:
    snapshot = simulate("", 1, 600 * MIB)
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            del block["address"]
    done = replay_snapshot({"segments": snapshot["segments"], "device_traces": snapshot["device_traces"]})
    assert done.mismatch is None
    assert done.same_blocks


def test_an_unmapped_block_starts_a_range() -> None:
    """A range whose front is unmapped when the trace begins still starts where it did: pages are counted from there."""
    recorder = Recorder(Allocator(parse_alloc_conf("expandable_segments:True")))
    for key, size in enumerate((15, 15, 15)):
        recorder.alloc(key, size * MIB, 0, key, [])
    recorder.free(0, 4, [])
    recorder.free(1, 5, [])
    recorder.empty_cache(6, [])
    begin = len(recorder.trace)
    recorder.alloc(4, 8 * MIB, 0, 7, [])
    recorder.alloc(5, 12 * MIB, 0, 8, [])
    recorder.alloc(6, 12 * MIB, 0, 9, [])
    snapshot = recorder.snapshot()
    snapshot["device_traces"] = [recorder.trace[begin:]]
    done = replay_snapshot(snapshot)
    assert (done.mismatch, done.same_blocks) == (None, True)


# Files


def write(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=4))
    return path


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Evil(), "asks for builtins.print"),
        ({"segments": [Evil()]}, "asks for"),
        (3, "no list of segments"),
        ({"device_traces": []}, "no list of segments"),
        ({"segments": [{"address": 1}]}, "no blocks"),
        ({"segments": [{"blocks": [], "address": 1, "total_size": 2}]}, "no stream"),
        ({"segments": [{"blocks": [{}], "address": 1, "total_size": 2, "stream": 0}]}, "no state"),
        ({"segments": [], "device_traces": 3}, "list of lists"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "no action or size"),
    ],
)
def test_bad_files_are_refused(
    content: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadFileError, match=words):
        read_snapshot(write(tmp_path / "s.pickle", content))
    assert capsys.readouterr().out == ""


def test_what_is_no_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a pickle")
    (tmp_path / "half").write_bytes(pickle.dumps({"segments": []})[:-3])
    for name in ("text", "half"):
        with pytest.raises(BadFileError, match="not a memory snapshot"):
            read_snapshot(tmp_path / name)
    with pytest.raises(BadFileError, match="can't be read"):
        read_snapshot(tmp_path / "missing")


def test_a_bare_list_of_segments_is_a_snapshot_without_a_trace(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.malloc(30 * MIB)
    found = read_snapshot(write(tmp_path / "s.pickle", segments(allocator)))
    assert found["device_traces"] == []
    assert replay_snapshot(found).reserved_bytes == 30 * MIB


def test_blocks_are_where_a_rebuild_puts_them(snapshot: Dict) -> None:
    allocator, live, _start = rebuild(snapshot)
    assert all(isinstance(block, Block) for block in live.values())
    assert allocator.allocated_bytes == sum(block.size for block in live.values())
