"""A simulated run written as a memory snapshot that PyTorch's own viewer opens (pytorch.org/memory_viz).

Layout and keys are those of the newest generation, as torch/csrc/cuda/memory_snapshot.cpp and torch/cuda/memory.py write them.
The pickle has protocol 4: viewers before torch 2.12 refuse protocol 5.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from loadmaster.dryrun.alloc_conf import AllocConf
from loadmaster.dryrun.allocator import Allocator, Block, OutOfMemoryError
from loadmaster.dryrun.files import write_whole
from loadmaster.dryrun.replaying import ALLOC_EVENT, FREE_EVENT
from loadmaster.dryrun.reports import Frames, segments

Dict = dict[str, Any]

FramedEvent = tuple[int, int, int, int, int, Frames]
"""(kind, key, bytes, stream, microseconds, frames): kinds as in ``replaying``; innermost frame first, each a dict with
filename, line and name. Use one list for all events of a stack: the file stores it once."""


class Recorder:
    """An allocator with its trace, as ``torch.cuda.memory._record_memory_history`` would keep it."""

    def __init__(self, allocator: Allocator, device: int = 0) -> None:
        self.allocator, self.device = allocator, device
        self.trace: list[Dict] = []
        self._live: dict[int, Block] = {}
        self._frames: dict[int, Frames] = {}
        self._segment_frames: dict[int, Frames] = {}

    def alloc(self, key: int, size: int, stream: int, time_us: int, frames: Frames) -> None:
        """A tensor is born; 0 bytes leave no event. Raises OutOfMemoryError, which leaves an ``oom`` event."""
        if not size:
            return
        try:
            block = self._call(self.allocator.malloc, (size, stream), time_us, frames)
        except OutOfMemoryError as error:
            event = self._event("oom", 0, error.rounded_bytes, stream, time_us, frames)
            del event["addr"]
            self.trace.append({**event, "device_free": error.free_bytes or 0})
            raise
        self._live[key] = block
        self._frames[block.address] = frames
        self.trace.append(self._event("alloc", block.address, size, stream, time_us, frames))

    def free(self, key: int, time_us: int, frames: Frames) -> None:
        """A tensor dies; one that was never born, or took no bytes, leaves no event."""
        block = self._live.pop(key, None)
        if block is None:
            return
        address, size, stream = block.address, block.requested, block.pool.stream
        late = block.uses is not None
        self.allocator.free(block)
        self.trace.append(self._event("free_requested", address, size, stream, time_us, frames))
        if not late:
            self.trace.append(self._event("free_completed", address, size, stream, time_us, frames))

    def block(self, key: int) -> Block:
        """The block of a living tensor, to say that other streams use it."""
        return self._live[key]

    def synchronize(self, time_us: int) -> None:
        """Other streams have done their work: what waited for them is free."""
        self._call(self.allocator.synchronize, (), time_us, [])

    def empty_cache(self, time_us: int, frames: Frames) -> None:
        """``torch.cuda.empty_cache()``."""
        self._call(self.allocator.empty_cache, (), time_us, frames)

    def snapshot(self, annotations: Iterable[Dict] = ()) -> Dict:
        """What ``torch.cuda.memory._snapshot()`` returns; annotations have stage, name, device and time_us."""
        told = segments(self.allocator, self.device, self._frames)
        for segment in told:
            segment["frames"] = self._segment_frames.get(segment["address"], [])
        return {
            "segments": told,
            "device_traces": [*([] for _ in range(self.device)), list(self.trace)],
            "allocator_settings": self.allocator.conf.settings(),
            "external_annotations": list(annotations),
        }

    def _call(self, act: Any, arguments: tuple[int, ...], time_us: int, frames: Frames) -> Any:
        """Let the allocator act, and put what it did with the driver into the trace."""
        log = self.allocator.log = []
        try:
            return act(*arguments)
        finally:
            for action, address, size, stream in log:
                if action in {"segment_alloc", "segment_map"}:
                    self._segment_frames.setdefault(address, frames)
                elif action in {"segment_free", "segment_unmap"}:
                    self._segment_frames.pop(address, None)
                self.trace.append(self._event(action, address, size, stream, time_us, frames))

    def _event(self, action: str, address: int, size: int, stream: int, time_us: int, frames: Frames) -> Dict:
        return {
            "action": action,
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": frames,
        }


def snapshot_of(
    events: Iterable[FramedEvent],
    conf: AllocConf | None = None,
    capacity_bytes: int | None = None,
    *,
    device: int = 0,
    annotations: Sequence[Dict] = (),
) -> Dict:
    """Play events through an allocator and tell its state and trace; an out-of-memory error ends the trace."""
    recorder = Recorder(Allocator(conf, capacity_bytes), device)
    try:
        for kind, key, size, stream, time_us, frames in events:
            if kind == ALLOC_EVENT:
                recorder.alloc(key, size, stream, time_us, frames)
            elif kind == FREE_EVENT:
                recorder.free(key, time_us, frames)
            else:
                recorder.empty_cache(time_us, frames)
    except OutOfMemoryError:
        pass  # it is in the trace
    return recorder.snapshot(annotations)


def write_snapshot(snapshot: Dict, path: str | Path) -> None:
    """Write a snapshot's file, whole or not at all; raises BadFileError where that can't be."""
    write_whole(path, pickle.dumps(snapshot, protocol=4))
