"""What follows the layers: final norm, output projection, loss.

Losses: ``hf`` is transformers' ForCausalLMLoss (logits upcast to float32, log_softmax, nll_loss); ``native`` the same
without the upcast; ``chunked`` is torchtune's CEWithChunkedOutputLoss (projection and loss on parts of the tokens);
``fused`` is Liger-Kernel's fused_linear_cross_entropy (gradients computed in forward, a chunk of logits at a time).
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
        x = run.norm(x, norm, name)
    return x


def logits(run: Run, x: Tensor, head: Head, rows: Size) -> Tensor:
    """``rows`` rows of logits."""
    run.tape.tag = "logits"
    weight = Linear(name="lm_head", inputs=head.inputs, outputs=head.vocab, bias=head.bias)
    y = run.linear(x, weight, rows, adapted=False, quantised=False)
    if head.softcap:
        y = ops.scale(
            run.tape,
            ops.elementwise(run.tape, ops.scale(run.tape, y, "logits / cap"), "tanh logits", keeps="output"),
            "capped logits",
        )
    return y


def loss(run: Run, x: Tensor, head: Head, held: list[Tensor]) -> Tensor:
    """The loss of all tokens from the final hidden states; what the model's outputs keep alive is put in ``held``."""
    kind = run.job.loss
    if kind == "fused":
        return _fused(run, x, head)
    if kind == "chunked":
        return _chunked(run, x, head, held)
    y = logits(run, x, head, run.rows)
    if run.job.outputs_held:
        held.append(y)
    return _cross_entropy(run.tape, y, upcast=kind == "hf")


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
        parts.append(logits(run, part, head, rows))
        del part
    if run.job.outputs_held:
        held.extend(parts)
    total: Tensor | None = None
    while parts:
        one = _cross_entropy(run.tape, parts.pop(0), upcast=True)
        total = one if total is None else ops.add(run.tape, total, one, "loss")
    assert total is not None
    return total


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
