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
    weight = Linear(name="lm_head", inputs=head.inputs, outputs=head.vocab, bias=head.bias)
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
    wide = ops.cast(tape, y, "float32", "logits float32") if upcast else ops.widest(tape, y, "logits float32")
    del y
    probabilities = ops.softmax(tape, wide, "log-softmax", wide.dtype)
    del wide
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
    while parts:
        part = parts.pop(0)
        one = (
            _compiled_cross_entropy(run.tape, part)
            if run.job.compile
            else _cross_entropy(run.tape, part, upcast=True)
        )
        del part
        total = one if total is None else ops.add(run.tape, total, one, "loss")
    assert total is not None
    return total


def _cut(run: Run, x: Tensor, head: Head) -> Tensor:
    """ml-cross-entropy cut_cross_entropy/cce.py and cce_backward.py: logits stay in registers; forward keeps logsumexp, the
    valid rows and a mean logit for each word, backward makes both gradients at once (arXiv:2411.09009)."""
    tape = run.tape
    tape.tag = "logits"
    name, size, vocab = "lm_head", head.vocab * head.inputs, head.vocab
    weight = ops.lower(
        tape, tape.parameter(name, size, run.weights, trainable=not run.frozen), f"{name} weight"
    )
    x = ops.lower(tape, x, "cut loss input")
    rows, inputs, trained = run.rows, x.elements, weight.needs_grad
    kept = [
        tape.new(rows, "float32", "logsumexp"),
        tape.new(rows, "int64", "rows with a label"),
        tape.new(vocab, "float32", "mean logit"),
    ]
    result = tape.new(rows, "float32", "loss per token")
    types, locks = (x.dtype, weight.dtype), ceil_div(head.inputs, 64)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        order = t.new(vocab, "int64", "order of the words")
        grads = [t.new(inputs, types[0], "cut loss: input gradient")]
        held = [order, t.new(ceil_div(rows, 128) * locks, "int32", "locks")]
        if trained:
            grads.append(t.new(size, types[1], "cut loss: head gradient"))
            held.append(t.new(-(-vocab // 128) * locks, "int32", "locks"))
        del order, held
        return [grads[0], grads[1] if trained else None]

    return tape.record("cut_cross_entropy", [x, weight], result, [x, weight, *kept], backward)


def _fused(run: Run, x: Tensor, head: Head) -> Tensor:
    """liger_kernel/ops/fused_linear_cross_entropy.py: chunk = next_power_of_2(rows / ceil(vocab / width)) rows."""
    tape = run.tape
    tape.tag = "logits"
    name, size = "lm_head", head.vocab * head.inputs
    weight = ops.lower(
        tape, tape.parameter(name, size, run.weights, trainable=not run.frozen), f"{name} weight"
    )
    x = ops.lower(tape, x, "fused loss input")
    chunk = minimum(next_power_of_2(ceil_div(run.rows, -(-head.vocab // head.inputs))), run.rows)
    grad_x = tape.new(x.elements, x.dtype, "fused loss: input gradient")
    trained = weight.needs_grad
    grad_w = tape.new(size, weight.dtype, "fused loss: head gradient") if trained else None
    part = tape.new(chunk * head.vocab, x.dtype, "fused loss: logits of a chunk")
    tape.scratch(chunk * head.inputs, x.dtype)
    if trained:
        tape.scratch(size, weight.dtype, "fused loss: head gradient of a chunk")
    del part
    result = tape.new(run.rows, "float32", "loss per token")
    saved = [grad_x, *([grad_w] if grad_w is not None else [])]
    del grad_x, grad_w

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [s[0], s[1] if trained else None]

    return tape.record("fused_linear_cross_entropy", [x, weight], result, saved, backward)
