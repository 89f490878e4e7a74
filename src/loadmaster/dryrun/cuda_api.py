"""``torch.cuda`` and ``torch.accelerator`` answer for the simulated card: its name, memory, streams, the allocator's figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from loadmaster.dryrun import reports
from loadmaster.dryrun.allocator import Allocator
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.tensors import Patches
from loadmaster.dryrun.tracker import Tracker
from loadmaster.units import MIB


class Stream:
    """torch.cuda.Stream without a queue: a number that allocations are tagged with."""

    made = 0
    tracker: Tracker | None = None

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        Stream.made += 1
        self.stream_id = self.cuda_stream = Stream.made
        self.priority, self.device = priority, torch.device("cuda", 0)

    @classmethod
    def numbered(cls, number: int) -> Stream:
        """The stream of this number."""
        stream = cls.__new__(cls)
        stream.stream_id = stream.cuda_stream = number
        stream.priority, stream.device = 0, torch.device("cuda", 0)
        return stream

    @property
    def device_index(self) -> int:
        """The one device."""
        return 0

    def synchronize(self) -> None:
        """Nothing runs."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing runs."""

    def wait_event(self, event: Any) -> None:
        """Nothing runs."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event if event is not None else Event()

    def query(self) -> bool:
        """All is done."""
        return True

    def is_capturing(self) -> bool:
        """No graph is captured."""
        return False

    def __enter__(self) -> Stream:
        assert Stream.tracker is not None
        self._before = Stream.tracker.stream
        Stream.tracker.stream = self.stream_id
        return self

    def __exit__(self, *_: object) -> None:
        assert Stream.tracker is not None
        Stream.tracker.stream = self._before

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """torch.cuda.Event that has always happened, at no time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    def record(self, stream: Any = None) -> None:
        """Nothing runs."""

    def wait(self, stream: Any = None) -> None:
        """Nothing runs."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """Nothing runs."""

    def elapsed_time(self, other: Any) -> float:
        """A dry run knows no time."""
        return 0.0


class StreamContext:
    """``torch.cuda.stream(s)``."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


class _Properties:
    """torch.cuda.get_device_properties of the simulated card."""

    def __init__(self, card: Card) -> None:
        self.name, self.total_memory = card.name, card.total_bytes
        self.major, self.minor = card.capability
        self.multi_processor_count = card.multiprocessors
        self.is_integrated = self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor, self.warp_size = 2048, 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block, self.shared_memory_per_block_optin = 49152, 101376
        self.shared_memory_per_multiprocessor, self.L2_cache_size = 102400, 50 * MIB
        self.gcnArchName = ""

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MIB}MB, multi_processor_count={self.multi_processor_count})"
        )


class RefusedError(RuntimeError):
    """Something that a dry run can't answer for."""


def install(patches: Patches, card: Card, tracker: Tracker) -> None:
    """Replace torch.cuda's functions for the time of a session."""
    Stream.tracker = tracker
    for name, answer in {**_device(card), **_memory(card, tracker), **_streams(tracker), **_random()}.items():
        patches.set(torch.cuda, name, answer)
        if name in _MEMORY_MODULE and hasattr(torch.cuda, "memory"):
            patches.set(torch.cuda.memory, name, answer)
    for name, answer in _private(card).items():
        patches.set(torch._C, name, answer)
    if hasattr(torch, "accelerator"):
        for name, answer in _accelerator(card, tracker).items():
            if hasattr(torch.accelerator, name):
                patches.set(torch.accelerator, name, answer)
    patches.set(torch.version, "cuda", torch.version.cuda or "12.8")
    patches.set(torch.Tensor, "record_stream", _record_stream(tracker))
    patches.set(
        torch.Tensor, "pin_memory", lambda tensor, device=None: tensor
    )  # host memory isn't the card's
    patches.set(torch.Tensor, "is_pinned", lambda tensor, device=None: not tensor.is_cuda)


def _record_stream(tracker: Tracker) -> Callable[..., None]:
    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        tracker.used_on(tensor, stream.stream_id)

    return record_stream


_MEMORY_MODULE = {
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats", "mem_get_info",
    "reset_peak_memory_stats", "empty_cache", "memory_summary", "memory_snapshot", "set_per_process_memory_fraction",
}  # fmt: skip


def _device(card: Card) -> dict[str, Any]:
    properties = _Properties(card)

    @contextlib.contextmanager
    def device(_: Any = None) -> Iterator[None]:
        yield

    class Device:
        """``with torch.cuda.device(0):``."""

        def __init__(self, device: Any = None) -> None:
            _only_one(device)

        def __enter__(self) -> None:
            """There is one device."""

        def __exit__(self, *_: object) -> None:
            """There is one device."""

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _only_one,
        "device": Device,
        "_exchange_device": lambda _: 0,
        "_maybe_exchange_device": lambda _: 0,
        "get_device_name": lambda device=None: card.name,
        "get_device_capability": lambda device=None: card.capability,
        "get_device_properties": lambda device=None: properties,
        "get_arch_list": lambda: [f"sm_{card.capability[0]}{card.capability[1]}"],
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or card.capability >= (8, 0)
        ),
        "is_tf32_supported": lambda: card.capability >= (8, 0),
        "synchronize": lambda device=None: None,
        "ipc_collect": lambda: None,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda *_: False,
        "utilization": lambda device=None: 0,
        "graph": _no_graphs,
        "make_graphed_callables": _no_graphs,
    }


def _only_one(device: Any = None) -> None:
    index = device if isinstance(device, int) else getattr(device, "index", None)
    if isinstance(device, str):
        index = torch.device(device).index
    if index is not None and index > 0:
        raise RefusedError(f"cuda:{index}: this dry run simulates one GPU, cuda:0")


def _no_graphs(*_: Any, **__: Any) -> None:
    raise RefusedError("CUDA graphs are not replayed in a dry run: run the program without them")


def _memory(card: Card, tracker: Tracker) -> dict[str, Any]:
    allocator = tracker.allocator

    def memory_stats(device: Any = None) -> dict[str, int]:
        return reports.stats(allocator)

    def reset(device: Any = None) -> None:
        _reset(allocator)

    def free_and_total(device: Any = None) -> tuple[int, int]:
        return max(0, card.usable_bytes - allocator.reserved_bytes), card.total_bytes

    return {
        "memory_allocated": lambda device=None: allocator.allocated_bytes,
        "max_memory_allocated": lambda device=None: allocator.peak_allocated_bytes,
        "memory_reserved": lambda device=None: allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: allocator.peak_reserved_bytes,
        "memory_cached": lambda device=None: allocator.reserved_bytes,
        "max_memory_cached": lambda device=None: allocator.peak_reserved_bytes,
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": memory_stats,
        "memory_snapshot": lambda *_, **__: reports.segments(allocator),
        "memory_summary": lambda *_, **__: (
            f"dry run: {allocator.allocated_bytes:,} B allocated, {allocator.reserved_bytes:,} B reserved"
        ),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "mem_get_info": free_and_total,
        "empty_cache": tracker.empty_cache,
        "set_per_process_memory_fraction": lambda fraction, device=None: allocator.set_memory_fraction(
            fraction
        ),
        "_record_memory_history": lambda *_, **__: None,
    }


def _reset(allocator: Allocator) -> None:
    allocator.peak_allocated_bytes, allocator.peak_reserved_bytes = (
        allocator.allocated_bytes,
        allocator.reserved_bytes,
    )
    allocator.peak_requested_bytes = allocator.requested_bytes


def _streams(tracker: Tracker) -> dict[str, Any]:
    return {
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "current_stream": lambda device=None: Stream.numbered(tracker.stream),
        "default_stream": lambda device=None: Stream.numbered(0),
        "set_stream": lambda stream: setattr(tracker, "stream", stream.stream_id),
    }


def _random() -> dict[str, Any]:
    state = torch.zeros(16, dtype=torch.uint8)
    return {
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda device=None: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
        "set_rng_state": lambda state, device=None: None,
        "set_rng_state_all": lambda states: None,
    }


def _private(card: Card) -> dict[str, Any]:
    return {
        "_get_accelerator": lambda check=None: torch.device("cuda"),
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getCurrentRawStream": lambda device=0: 0,
        "_cuda_isInBadFork": False,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": lambda _: None,
        "_cuda_exchangeDevice": lambda _: 0,
        "_cuda_maybeExchangeDevice": lambda _: 0,
    }


def _accelerator(card: Card, tracker: Tracker) -> dict[str, Any]:
    allocator = tracker.allocator
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": _only_one,
        "set_device_idx": _only_one,
        "current_stream": lambda device=None: Stream.numbered(tracker.stream),
        "set_stream": lambda stream: setattr(tracker, "stream", stream.stream_id),
        "synchronize": lambda device=None: None,
        "memory_allocated": lambda device=None: allocator.allocated_bytes,
        "max_memory_allocated": lambda device=None: allocator.peak_allocated_bytes,
        "memory_reserved": lambda device=None: allocator.reserved_bytes,
        "max_memory_reserved": lambda device=None: allocator.peak_reserved_bytes,
        "memory_stats": lambda device=None: reports.stats(allocator),
        "empty_cache": tracker.empty_cache,
        "reset_peak_memory_stats": lambda device=None: _reset(allocator),
    }
