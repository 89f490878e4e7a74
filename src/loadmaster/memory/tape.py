"""A tape of tensors that have sizes but no values: PyTorch's autograd, as far as memory goes.

``memory/blocks`` writes a layer on it in the order in which the library computes it. The tape then knows which tensors
autograd saves, which ones die with their Python name, and the highest point of a forward and a backward pass.
Tensors die by Python's own reference counting, as PyTorch's do, so a block is written with the library's variables
and scopes. Sizes may be ints or NumPy arrays (many jobs at once): only + - * and ``maximum`` touch them.

Mirrors torch/csrc/autograd (engine.cpp: nodes run in reverse order of creation; input_buffer.cpp: gradients that meet
are added in place if the first is no view and has no other holder, else into a new tensor; accumulate_grad.h: a first
gradient is stolen, not copied), tools/autograd/derivatives.yaml (what each operator saves) and
aten/src/ATen/autocast_mode.h (casts of trainable leaves are cached until autocast ends).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from loadmaster.arrays import Size, maximum, rounded
from loadmaster.dtypes import itemsize


class Storage:
    """A piece of device memory; it is given back when the last tensor or graph node that holds it is gone."""

    __slots__ = ("__weakref__", "key", "name", "saved", "size_bytes", "tag", "tape")

    def __init__(self, tape: Tape, size_bytes: Size, tag: str, name: str) -> None:
        self.tape, self.size_bytes, self.tag, self.name = tape, size_bytes, tag, name
        self.saved = False
        self.key = len(tape.events)
        tape.took(self)

    def __del__(self) -> None:
        self.tape.gave_back(self)


class Tensor:
    """A handle on a storage: ``elements`` values of ``dtype``. ``storage`` None: memory counted elsewhere (weights)."""

    __slots__ = ("dtype", "elements", "leaf", "needs_grad", "node", "shared", "slot", "storage")

    def __init__(
        self, elements: Size, dtype: str, storage: Storage | None, *, needs_grad: bool = False
    ) -> None:
        self.elements, self.dtype, self.storage = elements, dtype, storage
        self.needs_grad = needs_grad
        self.node: Node | None = None
        self.slot = 0
        self.leaf: str | None = None
        self.shared = False
        """As a gradient: it is a view or has several holders, so that nothing may be added to it in place."""

    @property
    def size_bytes(self) -> Size:
        """Bytes of its values, unrounded."""
        return self.elements * itemsize(self.dtype)


Grads = list["Tensor | None"]
Backward = Callable[["Tape", Grads, list[Tensor]], Sequence["Tensor | None"]]


class Node:
    """One operator in the graph: its inputs, what it saved, and how it turns gradients of outputs into those of inputs."""

    __slots__ = ("backward", "inputs", "name", "outputs", "saved")

    def __init__(
        self, name: str, inputs: Sequence[Tensor], saved: Sequence[Tensor], backward: Backward
    ) -> None:
        # Edges, not tensors: a graph does not keep its inputs alive, only what an operator saved.
        self.inputs = [(x.node, x.slot, x.leaf, x.elements) if x.needs_grad else None for x in inputs]
        self.name, self.saved, self.backward = name, list(saved), backward
        self.outputs = 1


class StoppedEarlyError(Exception):
    """The last saved tensor is there again (torch.utils.checkpoint, set_checkpoint_early_stop)."""


class Selection:
    """Which results selective checkpointing keeps: torchtitan's rule per operator (distributed/activation_checkpoint.py,
    _save_list: aten.mm, flash and memory-efficient attention; of the products every second one is made again). Through
    torch.utils.checkpoint create_selective_checkpoint_contexts they are kept in forward, and taken ``again`` in backward."""

    def __init__(self, kept: list[Storage] | None = None) -> None:
        self.again = kept is not None
        self.kept: list[Storage] = kept or []
        self.products = 0

    def keeps(self, operator: str) -> bool:
        """Whether this result is kept; the products of a pass are counted."""
        if operator == "mm":
            self.products += 1
            return self.products % 2 == 1
        return operator == "attention"


class Tape:
    """Live bytes and their highest point over one stretch of a step. ``composition`` (plain ints only) holds, at that
    point, bytes by (tag, name), and ``events`` what was taken (key, bytes) and given back (key, -1), in order."""

    def __init__(self, *, grad: bool = True, autocast: str | None = None, detail: bool = False) -> None:
        self.live_bytes: Size = 0
        self.peak_bytes: Size = 0
        self.grad_enabled, self.autocast = grad, autocast
        self.nodes: list[Node] = []
        self.gradients: dict[str, Tensor] = {}
        self.casts: dict[str, Tensor] = {}
        self.accumulating = False
        self.selection: Selection | None = None
        self.saving = 0
        """Operators so far that saved something."""
        self.last_saving: int | None = None
        """A recomputation ends here: nothing that follows is asked for."""
        self.asked_bytes: Size | None = None
        """Live bytes when backward first asked for a saved tensor."""
        self.tag = "activations"
        self.events: list[tuple[int, int]] = []
        self.detail = detail
        self._alive: WeakSet[Storage] = WeakSet()
        self.composition: dict[tuple[str, str], int] = {}
        self._before: tuple[Size, dict[tuple[str, str], int]] = (0, {})
        self.attributes: list[Storage] | None = None
        """What nodes of this graph hold as plain attributes, until the whole graph is gone; None: there is no graph."""
        self.last_key = -1
        """The result of the last operator that saved something."""

    def attribute(self, storage: Storage) -> None:
        """An autograd function keeps a tensor as an attribute of its context, not through save_for_backward."""
        if self.attributes is not None and all(each is not storage for each in self.attributes):
            storage.saved = True
            self.attributes.append(storage)

    # -- memory ---------------------------------------------------------------------------------------------------

    def took(self, storage: Storage) -> None:
        """Count a new storage, and note the peak."""
        self._before = (self.peak_bytes, self.composition)
        self.live_bytes = self.live_bytes + storage.size_bytes
        if self.detail:
            self.events.append((storage.key, int(storage.size_bytes)))
            self._alive.add(storage)
            if self.live_bytes > self.peak_bytes:
                self.composition = self.census()
        self.peak_bytes = maximum(self.peak_bytes, self.live_bytes)

    def gave_back(self, storage: Storage) -> None:
        """Uncount a storage whose last holder is gone."""
        self.live_bytes = self.live_bytes - storage.size_bytes
        if self.detail:
            self.events.append((storage.key, -1))

    def census(self) -> dict[tuple[str, str], int]:
        """Live bytes by (tag, name); what no node has saved and no tag claims is a temporary."""
        found: dict[tuple[str, str], int] = {}
        for storage in self._alive:
            tag = storage.tag if storage.saved or storage.tag != "activations" else "temporaries"
            key = (tag, storage.name)
            found[key] = found.get(key, 0) + int(storage.size_bytes)
        return found

    def mark(self) -> None:
        """Forget the highest point so far: what follows is a stretch of its own."""
        self.peak_bytes = self.live_bytes
        if self.detail:
            self.composition = self.census()

    # -- tensors --------------------------------------------------------------------------------------------------

    def new(self, elements: Size, dtype: str, name: str = "", tag: str | None = None) -> Tensor:
        """Allocate a tensor; the allocator hands out multiples of 512 bytes (CUDACachingAllocator kMinBlockSize)."""
        size = rounded(elements * itemsize(dtype))
        return Tensor(elements, dtype, Storage(self, size, tag or self.tag, name))

    def output(self, operator: str, elements: Size, dtype: str, name: str) -> Tensor:
        """An operator's result: a new tensor, unless selective checkpointing has kept it from forward."""
        if self.selection is None or not self.selection.keeps(operator):
            return self.new(elements, dtype, name)
        if self.selection.again:
            return Tensor(elements, dtype, self.selection.kept.pop(0))
        result = self.new(elements, dtype, name)
        if result.storage is not None:
            self.selection.kept.append(result.storage)
        return result

    def scratch(self, elements: Size, dtype: str, name: str = "kernel scratch") -> None:
        """A tensor that lives only inside the operator that asks for it."""
        self.new(elements, dtype, name)

    def parameter(self, name: str, elements: Size, dtype: str, *, trainable: bool) -> Tensor:
        """A weight: its own memory is counted by the weights component, its gradient here."""
        tensor = Tensor(elements, dtype, None, needs_grad=trainable)
        tensor.leaf = name
        return tensor

    def constant(self, elements: Size, dtype: str) -> Tensor:
        """A tensor counted elsewhere that needs no gradient."""
        return Tensor(elements, dtype, None)

    def view(self, x: Tensor, elements: Size | None = None) -> Tensor:
        """The same memory under another shape: reshape, transpose, slice, chunk."""
        result = Tensor(
            x.elements if elements is None else elements, x.dtype, x.storage, needs_grad=x.needs_grad
        )
        if not (self.grad_enabled and x.needs_grad):
            return result
        if elements is None:
            result.node, result.slot, result.leaf = x.node, x.slot, x.leaf
            return result
        # A part of a tensor: its gradient is a full tensor of zeros with the part filled in (slice_backward).
        whole, dtype = x.elements, x.dtype
        return self.record(
            "slice", [x], result, [], lambda tape, grads, saved: [tape.new(whole, dtype, "slice gradient")]
        )

    def record(
        self, name: str, inputs: Sequence[Tensor], output: Tensor, saved: Sequence[Tensor], backward: Backward
    ) -> Tensor:
        """Join ``output`` to the graph if any input needs a gradient; what is in ``saved`` stays until its backward."""
        if self.grad_enabled and any(x.needs_grad for x in inputs):
            node = Node(name, inputs, saved, backward)
            self.saving += bool(saved)
            for tensor in saved:
                if tensor.storage is not None:
                    tensor.storage.saved = True
            self.nodes.append(node)
            output.needs_grad, output.node, output.slot, output.leaf = True, node, 0, None
            if saved:
                self.last_key = output.storage.key if output.storage is not None else -1
                self._stop_early(output, saved)
        return output

    def _stop_early(self, output: Tensor, saved: Sequence[Tensor]) -> None:
        """Raise StoppedEarlyError behind the last operator that saves something. Inputs are saved before an operator runs
        (VariableType): its result isn't there yet."""
        if self.saving != self.last_saving:
            return
        if output.storage is not None and all(t.storage is not output.storage for t in saved):
            self.peak_bytes, self.composition = self._before
        raise StoppedEarlyError

    # -- backward -------------------------------------------------------------------------------------------------

    def backward(
        self, start: tuple[Node | None, int], gradient: list[Tensor], through: str | None = None
    ) -> Tensor | None:
        """Run the graph from ``start`` (node and slot of its output) in reverse order of creation; returns the gradient
        that reaches the leaf named ``through`` (a block's input). ``gradient`` holds the incoming one and is emptied.
        Gradients of parameters stay in ``gradients``, unless ``accumulating``: then they are added to existing ones."""
        waiting: dict[int, dict[int, Tensor]] = {}
        reached: list[Tensor] = []
        if start[0] is not None:
            waiting[id(start[0])] = {start[1]: gradient.pop()}
        del start
        while self.nodes:
            node = self.nodes.pop()
            slots = waiting.pop(id(node), None)
            if slots is None:
                continue
            if node.saved and self.asked_bytes is None:
                self.asked_bytes = self.live_bytes
            incoming: Grads = [slots.get(i) for i in range(node.outputs)]
            slots.clear()
            outgoing = list(node.backward(self, incoming, node.saved))
            incoming.clear()
            node.saved.clear()
            for index, edge in enumerate(node.inputs):
                grad, outgoing[index] = outgoing[index], None
                if edge is not None and grad is not None:
                    self._deliver(edge, grad, waiting, reached, through)
                del grad
            del node
        return reached[0] if reached else None

    def _deliver(
        self,
        edge: tuple[Any, ...],
        grad: Tensor,
        waiting: dict[Any, dict[int, Tensor]],
        reached: list[Tensor],
        mark: str | None,
    ) -> None:
        target, slot, leaf, elements = edge
        if grad.elements is not elements and not _same(grad.elements, elements):
            grad = self.new(elements, grad.dtype, "gradient summed to size")
        if target is not None:
            buffer = waiting.setdefault(id(target), {})
            if slot not in buffer:
                buffer[slot] = grad
            elif buffer[slot].shared:
                buffer[slot] = self.new(elements, grad.dtype, "gradients added")
        elif leaf == mark:
            if not reached:
                reached.append(grad)
        elif leaf is not None and not self.accumulating and leaf not in self.gradients:
            if grad.storage is not None:
                grad.storage.tag, grad.storage.name = "gradients", leaf
            self.gradients[leaf] = grad
        elif leaf is not None and not self.accumulating and self.gradients[leaf].shared and grad.shared:
            self.gradients[leaf] = self.new(elements, grad.dtype, leaf, tag="gradients")


def _same(a: Size, b: Size) -> bool:
    return bool((a == b) if isinstance(a, int) and isinstance(b, int) else (a == b).all())  # type: ignore[union-attr]
