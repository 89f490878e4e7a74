"""From storages to blocks: each new storage of the device is a block, its death gives the block back."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from loadmaster.dryrun import reports
from loadmaster.dryrun.allocator import Allocator, OutOfMemoryError
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.events import Block, Trace
from loadmaster.dryrun.result import OutOfMemory
from loadmaster.errors import LoadmasterError
from loadmaster.memory.components.runtime import cublas_workspace
from loadmaster.units import GIB

is_wrapped: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor is one of torch.func's (grad, vmap) around another: it has no storage of its own."""


class Place:
    """Where the program is: phase, step, and the calls of modules that are under way."""

    def __init__(self) -> None:
        self.phase, self.step = "load", 0
        self.calls: list[tuple[int, str]] = [(0, "")]
        self.numbers: list[int] = []
        self.paths: list[str] = []

    def enter(self, number: int, path: str) -> None:
        """A module's forward begins."""
        self.calls.append((number, path))
        self._note(path)

    def leave(self) -> int:
        """A module's forward ends; returns the call's number."""
        number, _ = self.calls.pop() if len(self.calls) > 1 else self.calls[0]
        self._note(self.calls[-1][1])
        return number

    def _note(self, path: str) -> None:
        """From the next autograd node on, nodes are made by this module."""
        self.numbers.append(torch._C._autograd._get_sequence_nr())
        self.paths.append(path)

    def now(self) -> tuple[int, str]:
        """Number and path of the innermost call; in backward the module that made the autograd node which runs."""
        call = self.calls[-1]
        if call[0]:
            return call
        node = torch._C._current_autograd_node()
        if node is None or not self.numbers:
            return call
        at = bisect_right(self.numbers, node._sequence_nr()) - 1
        return 0, self.paths[at] if at >= 0 else ""


class Tracker:
    """The blocks of one simulated device; what they add up to is in the trace (``report``)."""

    def __init__(self, pool: Allocator, card: Card) -> None:
        self.allocator, self.card, self.trace, self.place = pool, card, Trace(), Place()
        self.oom: OutOfMemory | None = None
        """The first request that the card couldn't grant."""
        self._cublas: set[tuple[bool, int]] = set()
        self.blocks: dict[int, Block | None] = {}
        """By storage; None: the storage is empty for now."""
        self.stream = 0
        self._watches: dict[int, weakref.ref[Any]] = {}

    def see(self, tensor: torch.Tensor, op: str) -> Block | None:
        """Count a tensor's storage if it is new; returns its block, None where it is empty."""
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            raise LoadmasterError(
                "sparse tensors aren't simulated: use dense gradients (sparse=False)"
            ) from None
        key = storage._cdata
        if key in self.blocks:
            return self.blocks[key]
        size = storage.nbytes()
        if not size:
            self.blocks[key] = None
            self._watch(storage, key)
            return None
        block = self.take(size, op)
        shape = tuple(tensor.shape)
        block.shape = f"{tuple(shape)} {str(tensor.dtype)[6:]}"
        self.blocks[key] = block
        self._watch(storage, key)
        return block

    def _watch(self, storage: torch.UntypedStorage, key: int) -> None:
        self._watches[key] = weakref.ref(storage, lambda _, key=key: self._gone(key))  # type: ignore[misc]

    def _gone(self, key: int) -> None:
        self._watches.pop(key, None)
        block = self.blocks.pop(key, None)
        if block is not None:
            self.give(block)

    def take(self, size_bytes: int, op: str) -> Block:
        """A block that no storage stands for (a kernel's scratch memory) until ``give``."""
        try:
            held = self.allocator.malloc(size_bytes, self.stream)
        except OutOfMemoryError as error:
            self._refused(error, op)
        trace, place = self.trace, self.place
        block = trace.taken(size_bytes, self.stream)
        block.held, block.size_bytes, block.op = held, held.size, op
        block.phase, block.step = place.phase, place.step
        block.call, block.module = place.now()
        trace.level(self.allocator.allocated_bytes, self.allocator.reserved_bytes)
        return block

    def _refused(self, error: OutOfMemoryError, op: str) -> NoReturn:
        """Note where memory ran out, and raise what CUDA's allocator raises (CUDACachingAllocator.cpp malloc)."""
        place, card = self.place, self.card
        _, module = place.now()
        free, unused = error.free_bytes or 0, reports.unused(self.allocator)
        self.oom = self.oom or OutOfMemory(
            module=module,
            op=op,
            shape="",
            phase=place.phase,
            step=place.step,
            requested_bytes=error.segment_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
            capacity_bytes=card.usable_bytes,
            largest_free_bytes=unused.largest_block_bytes,
            inactive_split_bytes=unused.split_bytes,
        )
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {error.segment_bytes / GIB:.2f} GiB. GPU 0 has a total capacity of "
            f"{card.total_bytes / GIB:.2f} GiB of which {free / GIB:.2f} GiB is free. Of the allocated memory "
            f"{error.allocated_bytes / GIB:.2f} GiB is allocated by PyTorch, and "
            f"{(error.reserved_bytes - error.allocated_bytes) / GIB:.2f} GiB is reserved by PyTorch but unallocated."
        )

    def give(self, block: Block) -> None:
        """Give a block back."""
        self.trace.given(block)
        self.allocator.free(block.held)
        self.trace.level(self.allocator.allocated_bytes, self.allocator.reserved_bytes)
        block.held = None

    def scratch(self, sizes_bytes: Iterable[int], op: str) -> None:
        """Memory that a kernel takes beside its outputs and gives back before it returns."""
        blocks = [self.take(size, op) for size in sizes_bytes if size]
        for block in blocks:
            block.category = "workspace"
            self.give(block)

    def multiplied(self, op: str) -> None:
        """A matrix product runs: cuBLAS takes its workspace when a thread (forward, autograd's) first uses it on a stream."""
        key = torch._C._current_graph_task_id() != -1, self.stream
        if key not in self._cublas:
            self._cublas.add(key)
            capability = ".".join(map(str, self.card.capability))
            block = self.take(
                int(cublas_workspace(capability, training=False).size_bytes), "cuBLAS workspace"
            )
            block.category = "workspace"

    def used_on(self, tensor: torch.Tensor, stream: int) -> None:
        """``tensor.record_stream``: its block can't be reused before that stream has passed."""
        block = self.blocks.get(tensor.untyped_storage()._cdata)
        if block is not None:
            self.allocator.record_stream(block.held, stream)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.trace.events.append(None)
        self.allocator.empty_cache()
        self.trace.level(self.allocator.allocated_bytes, self.allocator.reserved_bytes)

    def resized(self, storage: torch.UntypedStorage, before_bytes: int) -> None:
        """A storage has other bytes than before (``UntypedStorage.resize_``): FSDP frees gathered parameters so."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self.blocks or size == before_bytes:
            return
        old = self.blocks[key]
        if old is not None:
            self.give(old)
        block = self.blocks[key] = self.take(size, "resize_") if size else None
        if block is not None and old is not None:
            block.category, block.shape = old.category, old.shape

    def tag(self, tensor: Any, category: str, module: str | None = None) -> None:
        """Say what a tensor's block is, and whose; of a DTensor this rank's part, and what FSDP gathered stays gathered."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and not is_wrapped(tensor):
            block = self.blocks.get(tensor.untyped_storage()._cdata)
            if block is not None and (block.category != "gathered" or category != "parameters"):
                block.category = category
                if module is not None:
                    block.module = module

    def enter(self, phase: str, step: int | None = None) -> None:
        """The program enters a phase."""
        place = self.place
        place.phase = phase
        if step is not None:
            place.step = step
        elif phase != "load" and not place.step:
            place.step = 1  # steps count from 1; 0 is what comes before
        self.trace.mark(phase, place.step)

    def call(self, path: str) -> None:
        """A module's forward begins."""
        self.trace.call_ends.append(None)
        self.place.enter(len(self.trace.call_ends) - 1, path)

    def called(self) -> None:
        """It ends."""
        number = self.place.leave()
        if number:
            self.trace.call_ends[number] = len(self.trace.events)
