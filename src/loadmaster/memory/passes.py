"""One layer, or the head with its loss, run on the tape: what it keeps for backward and how high each pass goes.

All layers of a kind cost the same, so a layer is measured once and ``timeline`` multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from loadmaster.arrays import Size, amount, maximum
from loadmaster.jobs.job import Job
from loadmaster.memory import ops
from loadmaster.memory.blocks import head as heads
from loadmaster.memory.blocks.diffusion import diffusion_layer
from loadmaster.memory.blocks.layer import layer as token_layer
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.cost import CHECKPOINT, Census, Cost, Events
from loadmaster.memory.frozen import Place, frozen_head, unreached
from loadmaster.memory.parts import counted
from loadmaster.memory.tape import Node, Selection, StoppedEarlyError, Storage, Tape, Tensor
from loadmaster.models.spec import Block, ModelSpec, Norm


def layer(run: Run, x: Tensor, block: Block, *, cached: bool = False) -> Tensor:
    """One layer of a text-like tower, or of a diffusion transformer (its norms come from the time step)."""
    if block.modulated:
        return diffusion_layer(run, x, block)
    return token_layer(run, x, block, cached=cached)


def training_layer(
    job: Job,
    block: Block,
    hidden: int,
    length: Size,
    source: Size,
    *,
    detail: bool,
    place: Place,
    capability: str | None = None,
) -> Cost:
    """One layer of a training step. Where its input needs no gradient, what only serves that gradient is not kept."""

    def run_on(tape: Tape) -> Run:
        return Run(job, tape, queries=length, source=source, frozen=place.frozen, capability=capability)

    if place.checkpointed:
        return _checkpointed(job, block, hidden, run_on, detail)
    tape = Tape(autocast=job.precision.autocast, detail=detail)
    tape.attributes = []
    run = run_on(tape)
    cost = Cost()
    x = _input(run, hidden)
    x.needs_grad = not place.first
    tape.mark()
    out = layer(run, x, block)
    cost.forward, cost.forward_census = tape.peak_bytes, tape.composition
    tape.casts.clear()
    words = {key_of(x): "x", key_of(out): "out"}
    cost.keeps_input = x.storage is not None and x.storage.saved
    del x
    if not out.needs_grad:
        cost.forward_events = named(tape.events[1:], words)
        return cost
    last, start = [out], out_of(out)
    del out
    for storage in tape.attributes:
        cost.lasting = cost.lasting + storage.size_bytes
    _backward(tape, start, cost, last, words)
    return cost


def _checkpointed(job: Job, block: Block, hidden: int, run_on: Callable[[Tape], Run], detail: bool) -> Cost:
    """torch.utils.checkpoint: forward keeps the layer's input alone, and what a selection asks for; backward runs the layer
    again, then back."""
    cost = Cost(keeps_input=True)
    tape = Tape(grad=False, autocast=job.precision.autocast, detail=detail)
    tape.selection = Selection() if job.checkpointing == "selective" else None
    tape.attributes = []
    run = run_on(tape)
    x = _input(run, hidden)
    tape.mark()
    out = layer(run, x, block)
    cost.forward, cost.forward_census = tape.peak_bytes, tape.composition
    cost.casts = sum_sizes(tape.casts.values())
    cost.checkpoint = x.storage.size_bytes if x.storage is not None else 0
    # What it hands on is an input of the next layers' checkpoints.
    cost.retained = cost.checkpoint + sum_sizes(run.passed)
    kept = tape.selection.kept if tape.selection is not None else []
    lasting = [s for s in tape.attributes if s is not x.storage and all(s is not each for each in kept)]
    if detail:
        cost.retained_census = {CHECKPOINT: int(cost.retained)}
        _count(cost.retained_census, [*kept, *lasting])
        words = {storage.key: ("kept", number) for number, storage in enumerate(kept)}
        words |= {storage.key: ("lasting", number) for number, storage in enumerate(lasting)}
        cost.forward_events = named(tape.events[1:], {key_of(x): "x", key_of(out): "out", **words})
    for storage in lasting:
        cost.lasting = cost.lasting + storage.size_bytes
    for storage in kept:
        cost.retained = cost.retained + storage.size_bytes
    cost.retained = cost.retained + cost.lasting
    del x, out
    _run_again(job, run_on, block, hidden, kept, cost, detail=detail)
    # What lasts isn't taken again by the second run.
    cost.backward = cost.backward + cost.lasting
    _count(cost.backward_census, lasting if detail else [])
    return cost


def _count(census: Census, storages: list[Storage]) -> None:
    """Add storages that are saved to a census."""
    for storage in storages:
        key = ("activations", storage.name)
        census[key] = census.get(key, 0) + int(storage.size_bytes)


def _run_again(
    job: Job,
    run_on: Callable[[Tape], Run],
    block: Block,
    hidden: int,
    kept: list[Storage],
    cost: Cost,
    *,
    detail: bool,
) -> None:
    """Backward of a checkpointed layer, which has ``kept`` some results of forward. The layer is run again when backward
    first asks for a saved tensor, so beside the gradients made until then, and no further than to the last one."""
    tape, gradient, x = _before_again(job, run_on, hidden, kept, detail)
    held = tape.selection.kept if tape.selection is not None else []
    words: dict[int, object] = {storage.key: ("kept", number) for number, storage in enumerate(held)}
    words |= {key_of(gradient[0]): "gout", key_of(x): "x"}
    before, spare = len(tape.events), held[-1:]
    tape.mark()
    out = layer(run_on(tape), x, block)
    tape.casts.clear()
    start = out_of(out)
    if spare and spare[0].key != tape.last_key:
        spare.clear()  # else the recomputation stops before it would take this result, which stays
    del out, held
    again, census, live = tape.peak_bytes, tape.composition, tape.live_bytes
    tape.mark()
    reached = tape.backward(start, gradient, "input")
    del start, x, spare
    ahead = 0 if tape.asked_bytes is None else tape.asked_bytes - live
    if amount(ahead) > 0:
        again, census = _recomputed(job, run_on, block, hidden, kept, ahead, tape.saving, detail)
    cost.backward, cost.backward_census = maximum(again, tape.peak_bytes), tape.composition
    if detail and again > tape.peak_bytes:
        cost.backward_census = census
    cost.backward_events = named(tape.events[before:], {**words, key_of(reached): "gx"})
    _gradients(tape, cost)


def _before_again(
    job: Job, run_on: Callable[[Tape], Run], hidden: int, kept: list[Storage], detail: bool
) -> tuple[Tape, list[Tensor], Tensor]:
    """A tape with what is there when a layer is run again: results kept, the gradient of its output, its input."""
    tape = Tape(autocast=job.precision.autocast, detail=detail)
    if kept:
        tape.selection = Selection([Storage(tape, s.size_bytes, s.tag, s.name) for s in kept])
        for storage in tape.selection.kept:
            storage.saved = True
    run = run_on(tape)
    gradient = [
        tape.new(run.rows * hidden, run.residual, "gradient of the layer's output", tag="temporaries")
    ]
    x = _input(run, hidden)
    if x.storage is not None:
        x.storage.saved, x.storage.name = True, CHECKPOINT[1]
    return tape, gradient, x


def _recomputed(
    job: Job,
    run_on: Callable[[Tape], Run],
    block: Block,
    hidden: int,
    kept: list[Storage],
    ahead: Size,
    saving: int,
    detail: bool,
) -> tuple[Size, Census]:
    """The peak of running a layer again beside gradients of ``ahead`` bytes."""
    tape, gradient, x = _before_again(job, run_on, hidden, kept, detail)
    beside = tape.new(ahead, "uint8", "gradients behind the last saved tensor", tag="temporaries")
    tape.last_saving = saving
    tape.mark()
    with suppress(StoppedEarlyError):
        layer(run_on(tape), x, block)
    del gradient, beside, x
    return tape.peak_bytes, tape.composition


def norms(job: Job, places: tuple[tuple[str, Norm], ...], hidden: int, length: Size, *, detail: bool) -> Cost:
    """The norms behind a tower's last layer, where another tower reads what they make: their output stays for it."""
    tape = Tape(autocast=job.precision.autocast, detail=detail)
    run = Run(job, tape, queries=length)
    cost = Cost()
    x = _input(run, hidden)
    tape.mark()
    y = heads.final_norms(run, x, places)
    if y.storage is not None:
        y.storage.saved, y.storage.name = True, "tower output"
    cost.forward, cost.forward_census = tape.peak_bytes, tape.composition
    kept, words = y.storage, {key_of(x): "x", key_of(y): "out"}
    del x
    last, start = [y], out_of(y)
    del y
    _backward(tape, start, cost, last, words)
    del kept
    return cost


def head_and_loss(spec: ModelSpec, job: Job, *, detail: bool) -> Cost:
    """Final norm, projection and loss, forward and backward in one: they follow each other at the middle of the step."""
    head, tower = spec.head, spec.decoder
    assert head is not None
    tape = Tape(autocast=job.precision.autocast, detail=detail)
    run = Run(job, tape, queries=job.seq_len if tower.tokens is None else tower.tokens)
    cost = Cost()
    held: list[Tensor] = []
    x = _input(run, tower.hidden)
    x.needs_grad = not unreached(spec, job, tower, len(tower.layout))
    words = {key_of(x): "x"}
    tape.mark()
    y = heads.final_norms(run, x, tower.norms)
    del x
    run.frozen = run.frozen or frozen_head(spec, job)
    value = heads.loss(run, y, head, held, pooled=tower.modality != "text")
    del y
    cost.forward, cost.forward_census = tape.peak_bytes, tape.composition
    tape.casts.clear()
    words[key_of(value)] = "out"
    last, start = [value], out_of(value)
    del value
    _backward(tape, start, cost, last, words)
    projection = tape.gradients.get(heads.NAME)
    if projection is not None:
        cost.projection, cost.projection_viewed = sum_sizes([projection]), projection.shared
    if held:
        kept = sum_sizes(held)
        cost.held = counted(
            "logits", kept, "logits that the loop's variable keeps", "the training loop's own variable"
        )
    held.clear()
    return cost


def inference_layer(
    job: Job,
    block: Block,
    hidden: int,
    queries: Size,
    keys: Size,
    source: Size,
    *,
    detail: bool,
    capability: str | None = None,
) -> Cost:
    """One layer without gradients on ``queries`` new tokens a sequence that see ``keys`` tokens."""
    tape = Tape(grad=False, autocast=job.precision.autocast, detail=detail)
    run = Run(job, tape, queries=queries, keys=keys, source=source, capability=capability)
    x = _input(run, hidden)
    tape.mark()
    out = layer(run, x, block, cached=job.kv_cache)
    casts = sum_sizes(tape.casts.values())
    cost = Cost(forward=tape.peak_bytes, forward_census=tape.composition, casts=casts)
    words = {key_of(x): "x", key_of(out): "out"}
    del x, out
    cost.forward_events = [e for e in named(tape.events[1:], words) if e != ("out", -1)]
    return cost


def inference_head(spec: ModelSpec, job: Job, queries: Size, *, detail: bool) -> Cost:
    """Final norm over all new tokens, then logits of the last token of each sequence, or of all."""
    head, tower = spec.head, spec.decoder
    assert head is not None
    tape = Tape(grad=False, autocast=job.precision.autocast, detail=detail)
    run = Run(job, tape, queries=queries)
    x = _input(run, tower.hidden)
    words = {key_of(x): "x"}
    tape.mark()
    y = heads.final_norms(run, x, tower.norms)
    del x
    few = job.logits == "last" or tower.modality != "text"
    out = heads.logits(run, y, head, run.batch if few else run.rows)
    if job.facts.upcast_logits:
        low, out = out, ops.cast(tape, out, "float32", "logits float32")
        del low
    tape.scratch(run.batch * head.vocab, "float32", "next-token logits float32")
    cost = Cost(forward=tape.peak_bytes, forward_census=tape.composition)
    del y, out
    cost.forward_events = named(tape.events[1:], words)
    return cost


def evaluation_head(spec: ModelSpec, job: Job, *, detail: bool) -> Cost:
    """Final norm, projection and loss of all tokens without gradients."""
    head, tower = spec.head, spec.decoder
    assert head is not None
    tape = Tape(grad=False, autocast=job.precision.autocast, detail=detail)
    run = Run(job, tape, queries=job.seq_len if tower.tokens is None else tower.tokens)
    x = _input(run, tower.hidden)
    tape.mark()
    y = heads.final_norms(run, x, tower.norms)
    del x
    # The caller's variable holds the logits until the batch is done.
    held: list[Tensor] = []
    heads.loss(run, y, head, held, pooled=tower.modality != "text")
    return Cost(forward=tape.peak_bytes, forward_census=tape.composition)


def out_of(tensor: Tensor) -> tuple[Node | None, int]:
    """Where backward begins: the node and slot that made a tensor."""
    return tensor.node, tensor.slot


def sum_sizes(tensors: Iterable[Tensor]) -> Size:
    """Bytes of several tensors' storages."""
    total: Size = 0
    for tensor in tensors:
        if tensor.storage is not None:
            total = total + tensor.storage.size_bytes
    return total


def _input(run: Run, hidden: int) -> Tensor:
    x = run.tape.new(run.rows * hidden, run.residual, "layer input")
    if run.tape.grad_enabled:
        x.needs_grad, x.leaf = True, "input"
    return x


def _backward(
    tape: Tape, start: tuple[Node | None, int], cost: Cost, last: list[Tensor], words: dict[int, str]
) -> None:
    """From the end of forward: note what is retained, then go back with a gradient of the output's size."""
    middle = len(tape.events)
    out = last.pop()
    elements, dtype = out.elements, out.dtype
    del out
    cost.retained = tape.live_bytes
    cost.retained_census = tape.census()
    gradient = [tape.new(elements, dtype, "gradient of the layer's output", tag="temporaries")]
    words[key_of(gradient[0])] = "gout"
    tape.mark()
    reached = tape.backward(start, gradient, "input")
    cost.backward, cost.backward_census = tape.peak_bytes, tape.composition
    words[key_of(reached)] = "gx"
    cost.forward_events = named(tape.events[1:middle], words)
    cost.backward_events = named([e for e in tape.events[middle:] if words.get(e[0]) != "out"], words)
    _gradients(tape, cost)


def key_of(tensor: Tensor | None) -> int:
    """The key of a tensor's storage in its tape's events; -1 if it has none."""
    return tensor.storage.key if tensor is not None and tensor.storage is not None else -1


def named(events: list[tuple[int, int]], words: Mapping[int, object]) -> Events:
    """Events with the keys that neighbours share replaced by words."""
    return [(words.get(key, key), size) for key, size in events]


def _gradients(tape: Tape, cost: Cost) -> None:
    cost.gradients = sum_sizes(tape.gradients.values())
    if tape.detail:
        cost.gradient_census = {
            ("gradients", name): int(t.storage.size_bytes)
            for name, t in tape.gradients.items()
            if t.storage is not None
        }
