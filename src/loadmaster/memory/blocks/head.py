"""What follows the layers: final norm, output projection, loss.

Losses: ``hf`` is transformers' ForCausalLMLoss (logits upcast to float32, log_softmax, nll_loss); ``native`` the same
without the upcast; ``chunked`` is torchtune's CEWithChunkedOutputLoss (projection and loss on parts of the tokens);
``fused`` is Liger-Kernel's fused_linear_cross_entropy (gradients computed in forward, a chunk of logits at a time); ``cut``
is Apple's cut cross-entropy (no logits at all).
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, ceil_div, minimum, next_power_of_2
from loadmaster.memory import ops
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Grads, Tape, Tensor
from loadmaster.models.spec import Head, Linear, Norm

NAME = "lm_head"
"""The output projection's weight as a leaf of the tape."""


def final_norms(run: Run, x: Tensor, norms: tuple[tuple[str, Norm], ...]) -> Tensor:
    """The norms after the last layer."""
    for name, norm in norms:
        if name.startswith("final"):
            x = run.norm(x, norm, name)
    return x


def logits(run: Run, x: Tensor, head: Head, rows: Size) -> Tensor:
    """``rows`` rows of logits."""
    run.tape.tag = "logits"
    for linear in head.linears:
        x = ops.elementwise(run.tape, run.linear(x, linear, rows, adapted=False, quantised=False), "gelu")
    for name, norm in head.norms:
        x = run.norm(x, norm, name, rows)
    weight = Linear(name=NAME, inputs=head.inputs, outputs=head.vocab, bias=head.bias)
    y = run.linear(x, weight, rows, adapted=False, quantised=run.facts.quantises_head)
    if head.softcap:
        y = ops.scale(
            run.tape,
            ops.elementwise(run.tape, ops.scale(run.tape, y, "logits / cap"), "tanh logits", keeps="output"),
            "capped logits",
        )
    return y


def loss(run: Run, x: Tensor, head: Head, held: list[Tensor], *, pooled: bool = False) -> Tensor:
    """The loss of all tokens (``pooled``: of one row a sequence) from the final hidden states; what the loop keeps alive
    is put in ``held``."""
    if pooled:
        x = run.tape.view(x, run.batch * head.inputs)
        return _cross_entropy(run.tape, logits(run, x, head, run.batch), upcast=False)
    kind = run.job.loss
    if kind == "cut":
        return _cut(run, x, head)
    if kind == "fused":
        return _fused(run, x, head)
    if kind == "chunked":
        return _chunked(run, x, head, held)
    y = _returned(run, logits(run, x, head, run.rows), held)
    if run.job.compile:
        return _compiled_cross_entropy(run.tape, y)
    return _cross_entropy(run.tape, y, upcast=kind == "hf" and head.upcast)


def _returned(run: Run, y: Tensor, held: list[Tensor]) -> Tensor:
    """Logits as the model's caller gets them, and as its variables hold them through backward."""
    if run.facts.upcast_logits or run.facts.logits_held == "float32":
        y = ops.cast(run.tape, y, "float32", "logits float32")
    if run.job.outputs_held or run.facts.logits_held != "no":
        held.append(y)
    return y


def _compiled_cross_entropy(tape: Tape, y: Tensor) -> Tensor:
    """Compiled: the upcast, log_softmax and nll_loss are one kernel that keeps the logits; its backward makes their
    gradient and a float32 intermediate."""
    result = tape.new(1, "float32", "loss")
    size, dtype = y.elements, y.dtype

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        wide = t.new(size, "float32", "log-softmax gradient")
        grad = t.new(size, dtype, "logits gradient")
        del wide
        return [grad]

    return tape.record("compiled_loss", [y], result, [y], backward)


def _cross_entropy(tape: Tape, y: Tensor, *, upcast: bool) -> Tensor:
    """log_softmax is asked for in its input's format (LossNLL.cpp cross_entropy_loss), so autocast leaves it there; nll_loss
    is one of the operators that it runs in float32."""
    wide = ops.cast(tape, y, "float32", "logits float32") if upcast else y
    del y
    probabilities = ops.softmax(tape, wide, "log-softmax", wide.dtype)
    del wide
    probabilities = ops.widest(tape, probabilities, "log-softmax float32")
    size, dtype = probabilities.elements, probabilities.dtype
    result = tape.new(1, "float32", "loss")
    # nll_loss_backward fills a tensor of the input's size.
    return tape.record(
        "nll_loss",
        [probabilities],
        result,
        [probabilities],
        lambda t, g, s: [t.new(size, dtype, "log-softmax gradient")],
    )


def _chunked(run: Run, x: Tensor, head: Head, held: list[Tensor]) -> Tensor:
    chunks = run.job.loss_chunks
    rows = ceil_div(run.rows, chunks)
    parts = []
    for _ in range(chunks):
        part = run.tape.view(x, rows * head.inputs) if chunks > 1 else x
        parts.append(_returned(run, logits(run, part, head, rows), held))
        del part
    total: Tensor | None = None
    # The list lives until all parts have been seen.
    for part in parts:
        one = (
            _compiled_cross_entropy(run.tape, part)
            if run.job.compile
            else _cross_entropy(run.tape, part, upcast=True)
        )
        total = one if total is None else ops.add(run.tape, total, one, "loss")
    assert total is not None
    return total


def _cut(run: Run, x: Tensor, head: Head) -> Tensor:
    """ml-cross-entropy 25.1, cut_cross_entropy/cce.py and cce_backward.py: logits stay in registers; forward keeps logsumexp,
    the valid rows and a mean logit for each word, backward makes both gradients at once, in the format of the hidden states,
    and casts the weight's (arXiv:2411.09009)."""
    tape = run.tape
    tape.tag = "logits"
    size, vocab, rows = head.vocab * head.inputs, head.vocab, run.rows
    weight = tape.parameter(NAME, size, run.residual, trainable=not run.frozen)
    x = ops.lower(tape, x, "cut loss input")
    kept = [
        tape.new(rows, "int64", "labels"),
        tape.new(rows, "int32", "rows with a label"),
        tape.new(rows, "float32", "logsumexp"),
        tape.new(vocab, "float32", "mean logit"),
    ]
    tape.scratch(rows, "float32", "logits of the labels")
    result = tape.new(1, "float32", "loss")
    inputs, narrow, wide, trained = x.elements, x.dtype, weight.dtype, weight.needs_grad
    blocks = ceil_div(head.inputs, 64)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        order = t.new(vocab, "int32", "order of the words")
        grad_x = t.new(inputs, narrow, "cut loss: input gradient")
        grad_w = t.new(size, narrow, "cut loss: head gradient") if trained else None
        locks = [t.new(ceil_div(count, blocks) * blocks, "int32", "locks") for count in (rows, vocab)]
        del order, locks
        if grad_w is not None and wide != narrow:
            grad_w = t.new(size, wide, "cut loss: head gradient cast")
        return [grad_x, grad_w]

    return tape.record("cut_cross_entropy", [x, weight], result, [x, weight, *kept], backward)


def _fused(run: Run, x: Tensor, head: Head) -> Tensor:
    """Liger-Kernel 0.8, ops/fused_linear_cross_entropy.py: chunks of next_power_of_2(rows / ceil(vocab / width)) rows, whose
    products go into a buffer (``out=``) or into the gradients themselves, unless autocast has to convert the operands. The
    gradients have the formats of the hidden states and of the weight."""
    tape = run.tape
    tape.tag = "logits"
    size = head.vocab * head.inputs
    weight = tape.parameter(NAME, size, run.residual, trainable=not run.frozen)
    chunks = -(-head.vocab // head.inputs)
    chunk = minimum(next_power_of_2(ceil_div(run.rows, chunks)), run.rows)
    needed = x.needs_grad
    trained = needed and weight.needs_grad
    grad_x = tape.new(x.elements, x.dtype, "fused loss: input gradient")
    grad_w = tape.new(size, weight.dtype, "fused loss: head gradient") if trained else None
    losses = tape.new(run.rows, "float32", "loss per token")
    if x.dtype == weight.dtype and tape.autocast in (None, x.dtype):
        part = tape.new(chunk * head.vocab, x.dtype, "fused loss: logits of a chunk")
        if trained and x.dtype not in ops.HALVES:
            tape.scratch(size, x.dtype, "fused loss: head gradient of a chunk")
        del part
    else:
        _converted(tape, weight, chunk, head, chunks=chunks, needed=needed, trained=trained)
    result = tape.new(1, "float32", "loss")
    del losses
    saved = [grad_x, *([grad_w] if grad_w is not None else [])]
    del grad_x, grad_w

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [s[0], s[1] if trained else None]

    return tape.record("fused_linear_cross_entropy", [x, weight], result, saved, backward)


def _converted(
    tape: Tape, weight: Tensor, chunk: Size, head: Head, *, chunks: int, needed: bool, trained: bool
) -> None:
    """Two chunks of the fused loss under autocast: operands are converted for each product; the cast of a trained weight
    stays in the cache, that of its transpose does not (cached_cast leaves views out)."""
    low = tape.autocast or weight.dtype
    copies = ("fused loss: hidden states of a chunk", "fused loss: head weight transposed")
    for _ in range(min(chunks, 2)):
        held = [
            tape.new(chunk * head.inputs, low, copies[0]),
            tape.new(head.vocab * head.inputs, low, copies[1]),
        ]
        part = tape.new(chunk * head.vocab, low, "fused loss: logits of a chunk")
        held.clear()
        if needed:
            again = ops.lower(tape, weight, "fused loss: head weight")
            product = tape.new(chunk * head.inputs, low, "fused loss: input gradient of a chunk")
            del again, product
        if trained:
            tape.scratch(chunk * head.inputs, low, copies[0])
        del part
