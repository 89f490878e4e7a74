"""PyTorch's memory snapshots: reading one safely, and replaying its trace to see whether the model agrees with the run.

The format is written by torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/memory.py; it has no version number, so keys are
looked for. A replay gets only what the program did (allocate, free) and two things that no model can know: the address the
driver gives a new segment, and that it refused or the cache was emptied at a point. Everything else is compared.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

from loadmaster.dryrun.allocator import Allocator, Block, LogEntry, OutOfMemoryError
from loadmaster.dryrun.blocks import DEFAULT_POOL, FreeList, PoolId
from loadmaster.dryrun.rebuilding import Start, conf_of
from loadmaster.dryrun.reports import segments
from loadmaster.errors import BadFileError
from loadmaster.records import Record

Dict = dict[str, Any]

GIVEN = {"segment_alloc", "segment_map"}
TAKEN_BACK = {"segment_free", "segment_unmap"}


class _NoGlobals(pickle.Unpickler):
    """A snapshot holds dicts, lists, tuples, strings and numbers; whatever wants to import something is not one."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_snapshot(path: str | Path) -> Dict:
    """A snapshot's dict, with ``segments`` and ``device_traces``; raises BadFileError for anything else.

    The bare list that ``torch.cuda.memory_snapshot()`` returns is read as a snapshot without a trace.
    """
    try:
        with Path(path).open("rb") as file:
            found = _NoGlobals(file).load()
    except OSError as error:
        raise BadFileError(path, f"can't be read: {error.strerror or error}") from None
    except Exception as error:  # a corrupt pickle raises anything
        raise BadFileError(path, f"not a memory snapshot: {error}") from None
    if isinstance(found, list):
        found = {"segments": found, "device_traces": []}
    wrong = _wrong(found)
    if wrong:
        raise BadFileError(path, f"not a memory snapshot: {wrong}")
    return dict(found)


def _wrong(found: Any) -> str:
    """What is missing in a loaded file, or nothing."""
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        return "no list of segments"
    for segment in found["segments"]:
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            return "a segment has no blocks"
        for key in ("address", "total_size", "stream"):
            if not isinstance(segment.get(key), int):
                return f"a segment has no {key}"
        if any(not isinstance(block, dict) or "state" not in block for block in segment["blocks"]):
            return "a block has no state"
    traces = found.setdefault("device_traces", [])
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        return "device_traces is not a list of lists"
    for trace in traces:
        for event in trace:
            if not isinstance(event, dict) or "action" not in event or not isinstance(event.get("size"), int):
                return "an event has no action or size"
    return ""


class SnapshotReplay(Record, kw_only=True):
    """How a replay compares with the run; counts go up to the first mismatch.

    ``unknown_blocks`` are older than the trace and freed in it; of them ``ambiguous_blocks`` have a size that is a guess.
    ``mismatch`` is None when every block was handed out at its address and every segment event came in its place, with its
    size; ``same_blocks`` says whether also every block of the final state is the same.
    """

    events: int
    addresses: int
    segment_events: int
    unknown_blocks: int
    ambiguous_blocks: int
    start_reserved_bytes: int
    start_allocated_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    recorded_reserved_bytes: int
    recorded_allocated_bytes: int
    same_blocks: bool
    mismatch_at: int | None = None
    mismatch: str | None = None


class _Recorded(Allocator):
    """An allocator whose driver does what a recording says it did."""

    script: list[Dict]
    at = 0

    def has_room(self, size: int) -> bool:
        return self.at < len(self.script) and self.script[self.at]["action"] in GIVEN

    def new_address(self, pool: FreeList, size: int) -> int:
        if self.at < len(self.script):
            return int(self.script[self.at]["addr"])
        return super().new_address(pool, size)

    def reserve(self, action: str, pool: FreeList, address: int, size: int) -> None:
        super().reserve(action, pool, address, size)
        self.at += 1


class _MismatchError(Exception):
    """The model and the recording differ."""


def rebuild(snapshot: Dict, device: int = 0) -> tuple[Allocator, dict[int, Block], Start]:
    """The allocator as it was before the first event of a device's trace, and its living blocks by address."""
    start, trace = _start(snapshot, device)
    start.undo(trace)
    allocator = _Recorded(start.conf, streams_lag=True, log=[])
    allocator.script = []
    return allocator, start.build(allocator), start


def _start(snapshot: Dict, device: int) -> tuple[Start, list[Dict]]:
    traces = snapshot["device_traces"]
    trace = traces[device] if device < len(traces) else []
    own = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
    return Start(own, conf_of({**snapshot, "segments": own})), trace


def replay_snapshot(snapshot: Dict, device: int = 0) -> SnapshotReplay:
    """Play a device's trace from the state at its start, and compare with it at every event."""
    allocator, live, start = rebuild(snapshot, device)
    assert isinstance(allocator, _Recorded)
    trace = _start(snapshot, device)[1]
    own = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
    begun = allocator.reserved_bytes, allocator.allocated_bytes
    replay = _Replay(allocator, live, trace, own)
    mismatch = None
    try:
        replay.run()
    except _MismatchError as error:
        mismatch = str(error)
    return SnapshotReplay(
        events=len(trace),
        addresses=replay.addresses,
        segment_events=replay.segment_events,
        unknown_blocks=start.unknown,
        ambiguous_blocks=start.ambiguous,
        start_reserved_bytes=begun[0],
        start_allocated_bytes=begun[1],
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        allocated_bytes=allocator.allocated_bytes,
        recorded_reserved_bytes=sum(segment["total_size"] for segment in own),
        recorded_allocated_bytes=sum(segment["allocated_size"] for segment in own),
        same_blocks=_blocks(segments(allocator)) == _blocks(own),
        mismatch_at=replay.index if mismatch else None,
        mismatch=mismatch,
    )


def _blocks(told: list[Dict]) -> set[tuple[int, int, str]]:
    """Address, size and state of every block; before 2.1 a block doesn't say its address."""
    found = set()
    for segment in told:
        at = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", at)
            found.add((at, block["size"], block["state"].replace("awaiting", "pending")))
            at += block["size"]
    return found


class _Replay:
    """One pass over a trace. Segment events between two others are one group: what one malloc, or one pass, did."""

    def __init__(
        self, allocator: _Recorded, live: dict[int, Block], trace: list[Dict], own: list[Dict]
    ) -> None:
        self.allocator, self.live, self.trace = allocator, live, trace
        self.private = [
            (
                segment["address"],
                segment["address"] + segment["total_size"],
                tuple(segment["segment_pool_id"]),
            )
            for segment in own
            if tuple(segment.get("segment_pool_id", DEFAULT_POOL)) != DEFAULT_POOL
        ]
        self.addresses = self.segment_events = self.index = 0

    def run(self) -> None:
        """Play all events; raises _MismatchError at the first that differs, with ``index`` at it."""
        trace = self.trace
        while self.index < len(trace):
            begin = self.index
            end = begin
            while end < len(trace) and trace[end]["action"] in GIVEN | TAKEN_BACK:
                end += 1
            group = trace[begin:end]
            self.allocator.script, self.allocator.at = group, 0
            log = self.allocator.log = []
            if group and group[0]["action"] in TAKEN_BACK:
                # Before the search: a pass that is over can't be told from one that a refused request began.
                self.allocator.empty_cache()
            if end < len(trace):
                self.index = end
                self._play(trace[end])
            if log or group:
                self._compare(log, group, begin)
            self.index = end + 1

    def _play(self, event: Dict) -> None:
        action, address, size = event["action"], event.get("addr", 0), event["size"]
        if action in {"alloc", "oom"}:
            try:
                block = self.allocator.malloc(size, event["stream"], self._pool(event))
            except OutOfMemoryError:
                if action == "alloc":
                    raise _MismatchError(
                        f"an allocation of {size} bytes needs memory that the driver wasn't asked for"
                    ) from None
                return
            if action == "oom":
                raise _MismatchError(f"an allocation of {size} bytes finds a block where the run had none")
            if block.address != address:
                raise _MismatchError(
                    f"an allocation of {size} bytes is at {block.address:#x} and was at {address:#x}"
                )
            self.live[address] = block
            self.addresses += 1
        elif action == "free_requested":
            following = self.trace[self.index + 1] if self.index + 1 < len(self.trace) else {}
            if (following.get("action"), following.get("addr")) != ("free_completed", address):
                self._block(address).uses = set()
            self.allocator.free(self._block(address))
        elif action == "free_completed":
            self.allocator.complete(self._block(address))
            del self.live[address]

    def _block(self, address: int) -> Block:
        if address not in self.live:
            raise _MismatchError(f"no block lives at {address:#x}")
        return self.live[address]

    def _pool(self, event: Dict) -> PoolId:
        for begin, end, pool_id in self.private:
            if begin <= event.get("addr", 0) < end:
                return pool_id
        return DEFAULT_POOL

    def _compare(self, log: list[LogEntry], group: list[Dict], begin: int) -> None:
        done = [entry for entry in log if entry[0] in GIVEN | TAKEN_BACK]
        for at, event in enumerate(group):
            recorded = (event["action"], event["addr"], event["size"], event["stream"])
            if at >= len(done) or done[at] != recorded:
                self.index = begin + at
                found = (
                    f"{done[at][0]} of {done[at][2]} bytes at {done[at][1]:#x}"
                    if at < len(done)
                    else "nothing"
                )
                raise _MismatchError(
                    f"{recorded[0]} of {recorded[2]} bytes at {recorded[1]:#x} is expected, and {found} happens"
                )
            self.segment_events += 1
        if len(done) > len(group):
            self.index = begin + len(group)
            raise _MismatchError(
                f"{done[len(group)][0]} of {done[len(group)][2]} bytes happens, and nothing is expected"
            )
