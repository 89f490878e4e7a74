"""Positions that enter attention as scores: T5's bias of every head, and DeBERTa's products of content and position.

Mirrors T5Attention.compute_bias, integrations/sdpa_attention.py create_position_bias_mask and
DisentangledSelfAttention.disentangled_attention_bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from loadmaster.arrays import Size, surely
from loadmaster.memory import ops
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Grads, Tape, Tensor
from loadmaster.models.spec import Attention, Block

BUCKETING = 6
"""int64 tensors of queries × keys that live together while distances become buckets (_relative_position_bucket)."""


def handed_on(run: Run, block: Block) -> list[Tensor]:
    """The biases that the stack hands to a layer and holds while it runs. In training they are counted where they were made."""
    if run.job.training:
        return []
    mixers = [m for m in (block.mixer, block.cross) if isinstance(m, Attention) and m.bias == "shared"]
    return [run.tape.new(_size(run, mixer), run.residual, "position bias") for mixer in mixers]


def bias(run: Run, spec: Attention, dtype: str) -> Tensor:
    """T5's bias of scores (heads × queries × keys). Without a graph that would hold a new one, ``run.passed`` does: the stack
    hands it on to its next layer."""
    size = _size(run, spec)
    if spec.bias == "shared":
        found = run.tape.constant(size, dtype if spec.cross else run.residual)
    elif spec.cross:
        found = run.tape.new(size, dtype, "position bias")
    else:
        found = _looked_up(run, spec, size)
    if spec.cross:
        # T5Attention.forward asks for a gradient of these zeros, so that a checkpoint has one.
        found.needs_grad = run.tape.grad_enabled and _checkpoints(run)
    elif spec.bias == "shared":
        found.needs_grad = run.tape.grad_enabled and not run.frozen
    if not run.tape.grad_enabled and spec.bias == "made":
        run.passed.append(found)
    return found


def _size(run: Run, spec: Attention) -> Size:
    return spec.heads * run.queries * (run.source if spec.cross else run.keys)


def _checkpoints(run: Run) -> bool:
    return run.job.checkpointing != "none"


def _looked_up(run: Run, spec: Attention, size: Size) -> Tensor:
    tape = run.tape
    (table,) = spec.extra
    cells, values = run.queries * run.keys, prod(table.shape)
    tape.scratch(cells * BUCKETING, "int64", "distances")
    buckets = tape.new(cells, "int64", "buckets of distances")
    weight = tape.parameter(table.name, values, run.residual, trainable=not run.frozen)
    found = tape.new(size, run.residual, "position bias")
    return tape.record(
        "embedding",
        [weight],
        found,
        [buckets],
        lambda t, g, s: [t.new(values, weight.dtype, "table gradient")],
    )


def mask(run: Run, spec: Attention, dtype: str) -> Tensor:
    """The bias as SDPA takes it: of a causal layer with later keys masked out, and contiguous, so copied in every layer. Where
    a layer is run again, what later layers have given as the bias' gradient waits beside it (input_buffer.cpp)."""
    tape, found = run.tape, bias(run, spec, dtype)
    waits = found.needs_grad and _checkpoints(run)
    # And of zeros, a leaf, the first ones.
    count = (2 if spec.cross and spec.bias == "made" else 1) if waits else 0
    waiting = [tape.new(found.elements, found.dtype, "gradient of the position bias") for _ in range(count)]
    if spec.causal:
        found = ops.copy(tape, found, "position bias, masked")
    y = found if spec.cross else tape.new(found.elements, found.dtype, "position bias, contiguous")
    if y is found and not waiting:
        return found

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [g[0]]

    if y is found:
        y = Tensor(found.elements, found.dtype, found.storage)
    return tape.record("clone", [found], y, waiting, backward)


ALIGNED = 8
"""Columns that a mask of the memory-efficient kernel is a multiple of (attention.cpp mem_eff_alignment)."""


def aligned(run: Run, keys: Size) -> Tensor:
    """A mask that the tower has made: cast under autocast, and copied in every layer if its rows have to be padded
    (attention.cpp pad_bias)."""
    found = ops.lower(run.tape, run.tape.constant(run.queries * keys, run.residual), "attention mask")
    padded = -(-keys // ALIGNED) * ALIGNED
    if not surely(padded > keys):
        return found
    return run.tape.new(run.queries * padded, found.dtype, "attention mask, padded")


def disentangled(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    """DisentangledSelfAttention.forward behind its projections: scores of contents, and of contents and positions."""
    tape, size = run.tape, run.batch * spec.heads * run.queries * run.keys
    q, k, v = (
        ops.copy(tape, each, f"{name} by head") for each, name in ((q, "query"), (k, "key"), (v, "value"))
    )
    scores = ops.matmul(tape, q, ops.scale(tape, k, "scaled key"), size, "attention scores")
    if spec.relative:
        scores = ops.add(tape, scores, _terms(run, q, k, spec, size), "scores with positions")
    scores = _filled(run, scores)
    del q, k
    weights = ops.softmax(tape, scores, "attention weights")
    del scores
    weights = ops.dropout(tape, weights, run.dropout(spec.dropout), "attention dropout")
    out = ops.matmul(tape, weights, v, run.rows * spec.heads * spec.value_dim, "attention output")
    return ops.copy(tape, out, "attention output contiguous")


def _terms(run: Run, q: Tensor, k: Tensor, spec: Attention, size: Size) -> Tensor:
    """The sum over c2p and p2c: a product with the projected table of positions, of which each query and key gather theirs."""
    tape, rows = run.tape, 2 * spec.span
    table = tape.constant(rows * spec.projections[0].inputs, run.residual)
    table.needs_grad = tape.grad_enabled and not run.frozen
    table = ops.dropout(tape, table, run.dropout(spec.dropout), "dropout of positions")
    own = dict(zip(("c2p", "p2c"), (spec.projections[1], spec.projections[0]), strict=True))
    own |= dict(zip(spec.relative, spec.projections[3:], strict=False))
    repeated = {}
    for term in reversed(spec.relative):
        projected = ops.copy(tape, run.linear(table, own[term], rows), "positions by head")
        repeated[term] = ops.copy(
            tape, projected, "positions of all sequences", run.batch * projected.elements
        )
        del projected
    total: Tensor | None = None
    for term in spec.relative:
        content = q if term == "c2p" else k
        wide = ops.matmul(
            tape, content, repeated[term], run.rows * spec.heads * rows, f"{term} scores of the span"
        )
        index = tape.new(run.queries * run.keys, "int64", "positions in the span")
        part = ops.scale(tape, _gathered(tape, wide, index, size), f"{term} scores scaled")
        del wide, index
        total = part if total is None else _added(tape, total, part)
        del part
    assert total is not None
    return total


def _gathered(tape: Tape, x: Tensor, index: Tensor, size: Size) -> Tensor:
    """torch.gather: keeps its input (for its sizes) and the index; backward adds up in zeros of the input's size."""
    y = tape.new(size, x.dtype, "scores gathered")
    before, dtype = x.elements, x.dtype
    return tape.record(
        "gather", [x], y, [x, index], lambda t, g, s: [t.new(before, dtype, "gather gradient")]
    )


def _added(tape: Tape, total: Tensor, part: Tensor) -> Tensor:
    """``score += part``: in place; both gradients are the incoming one."""
    y = Tensor(total.elements, total.dtype, total.storage)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        got = g[0]
        assert got is not None
        got.shared = True
        return [got, got]

    return tape.record("add_", [total, part], y, [], backward)


def _filled(run: Run, scores: Tensor) -> Tensor:
    """``masked_fill``: a new tensor; the bool mask stays."""
    tape = run.tape
    padding = tape.new(run.batch * run.queries * run.keys, "bool", "mask of padding")
    y = tape.new(scores.elements, scores.dtype, "scores masked")
    size, dtype = scores.elements, scores.dtype
    return tape.record(
        "masked_fill", [scores], y, [padding], lambda t, g, s: [t.new(size, dtype, "masked gradient")]
    )
