"""Feed-forward layers: gated and plain MLPs (LlamaMLP, GPT2MLP, Phi3MLP) and mixtures of experts.

Experts run as transformers' grouped_mm_experts_forward does (integrations/moe.py, its default): tokens sorted by
expert, two grouped products, weighted and summed.
"""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.memory import ops
from loadmaster.memory.blocks.merged import Merged, router_logits
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Tape, Tensor
from loadmaster.models.spec import Experts, FeedForward, Linear, Mlp

RESULT_SAVERS = {"relu": "output", "sigmoid": "output", "tanh": "output"}
"""Activations whose backward needs their result, not their input (derivatives.yaml)."""


def feedforward(run: Run, x: Tensor, spec: FeedForward) -> Tensor:
    """The feed-forward's output for input ``x``."""
    return _experts(run, x, spec) if isinstance(spec, Experts) else mlp(run, x, spec)


def mlp(run: Run, x: Tensor, spec: Mlp, rows: Size | None = None) -> Tensor:
    """``down(act(gate(x)) * up(x))``, or ``down(act(up(x)))``."""
    rows = run.rows if rows is None else rows
    inner = ops.dropout(run.tape, _inner(run, x, spec, rows), run.dropout(spec.dropout))
    return run.linear(inner, spec.output, rows)


def _inner(run: Run, x: Tensor, spec: Mlp, rows: Size) -> Tensor:
    """What goes into the output projection."""
    first = run.linear(x, spec.projections[0], rows)
    if not spec.gated:
        return activation(run, first, spec.activation)
    if len(spec.projections) == 1:
        gate, up = run.tape.view(first, rows * spec.width), run.tape.view(first, rows * spec.width)
        del first
        return gated(run, gate, up, spec.activation)
    if run.job.compile:
        return ops.gated_product(run.tape, first, run.linear(x, spec.projections[1], rows))
    acted = activation(run, first, spec.activation)
    del first
    return ops.mul(run.tape, acted, run.linear(x, spec.projections[1], rows), "gated product")


def gated(run: Run, gate: Tensor, up: Tensor, name: str) -> Tensor:
    """``act(gate) * up``; gpt-oss clamps both and adds one (GptOssExperts._apply_gate)."""
    tape = run.tape
    if run.job.compile:
        return ops.gated_product(tape, gate, up)
    if name != "clamped_swiglu":
        return ops.mul(tape, activation(run, gate, name), up, "gated product")
    gate, up = ops.elementwise(tape, gate, "clamped gate"), ops.elementwise(tape, up, "clamped up")
    sigmoid = ops.elementwise(tape, ops.scale(tape, gate, "gate scaled"), "gate sigmoid", keeps="output")
    glu = ops.mul(tape, gate, sigmoid, "glu")
    del gate, sigmoid
    return ops.mul(tape, ops.scale(tape, up, "up + 1"), glu, "gated product")


def activation(run: Run, x: Tensor, name: str) -> Tensor:
    """An activation function by its name in a config (``silu``, ``gelu_new`` ...)."""
    if run.job.compile or run.facts.native_activations:
        return ops.elementwise(run.tape, x, name, keeps=RESULT_SAVERS.get(name, "input"))
    written = {
        "gelu_new": _gelu_new,
        "gelu_fast": _gelu_fast,
        "quick_gelu": _quick_gelu,
        "relu2": _relu2,
    }.get(name)
    if written is not None:
        return written(run.tape, x)
    return ops.elementwise(run.tape, x, name, keeps=RESULT_SAVERS.get(name, "input"))


def _gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """NewGELUActivation: ``0.5 * x * (1 + tanh(c * (x + 0.044715 * x**3)))``, operator by operator; autocast runs pow, and
    so what comes after it, in float32."""
    half = ops.scale(tape, x, "gelu 0.5x")
    wide = ops.widest(tape, x, "gelu input float32")
    cubed = ops.scale(tape, ops.elementwise(tape, wide, "gelu pow", scratch=2), "gelu scaled pow")
    del wide
    inner = ops.scale(tape, ops.add(tape, x, cubed, "gelu sum"), "gelu scaled sum")
    del cubed
    return ops.mul(tape, half, _one_plus_tanh(tape, inner), "gelu_new")


def _gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """FastGELUActivation: ``0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x)))``, operator by operator."""
    half = ops.scale(tape, x, "gelu 0.5x")
    square = ops.mul(tape, ops.scale(tape, x, "gelu 0.04x"), x, "gelu 0.04xx")
    inner = ops.mul(
        tape, ops.scale(tape, x, "gelu cx"), ops.scale(tape, square, "gelu 1 + 0.04xx"), "gelu inner"
    )
    del square
    return ops.mul(tape, half, _one_plus_tanh(tape, inner), "gelu_fast")


def _one_plus_tanh(tape: Tape, x: Tensor) -> Tensor:
    return ops.scale(tape, ops.elementwise(tape, x, "gelu tanh", keeps="output"), "gelu 1 + tanh")


def _quick_gelu(tape: Tape, x: Tensor) -> Tensor:
    """QuickGELUActivation: ``x * sigmoid(1.702 * x)``."""
    gate = ops.elementwise(tape, ops.scale(tape, x, "gelu 1.702x"), "gelu sigmoid", keeps="output")
    return ops.mul(tape, x, gate, "quick_gelu")


def _relu2(tape: Tape, x: Tensor) -> Tensor:
    """ReLUSquaredActivation: ``relu(x) ** 2``."""
    return ops.elementwise(tape, ops.elementwise(tape, x, "relu", keeps="output"), "relu squared", scratch=2)


def _experts(run: Run, x: Tensor, spec: Experts) -> Tensor:
    if spec.all_tokens:
        return _on_all_tokens(run, x, spec)
    weights = _route(run, x, spec)
    if not spec.stacked and run.frozen:
        out = _one_by_one(run, x, spec)
        if not run.tape.grad_enabled:
            weights = run.tape.new(
                out.elements // _width(spec), weights.dtype, "routing weights of an expert"
            )
        weighted = ops.mul(run.tape, out, weights, "weighted expert outputs")
        del out
        result = _in_token_order(run, x, [weighted])
        del weighted
    else:
        result = _all_at_once(run, x, weights, spec)
    return result if spec.shared is None else _with_shared(run, x, result, spec)


def _all_at_once(run: Run, x: Tensor, weights: Tensor, spec: Experts) -> Tensor:
    """Grouped products of all experts (grouped_mm_experts_forward), which keeps its variables until it returns."""
    tape = run.tape
    merged = Merged(run, spec)
    pairs = run.rows * spec.per_token
    chosen = ops.copy(tape, x, "tokens sorted by expert", pairs * _width(spec))
    hidden = _grouped(run, chosen, spec, pairs, spec.expert.projections, "experts up", merged)
    width = spec.expert.width
    if spec.expert.gated:
        gate, up = tape.view(hidden, pairs * width), tape.view(hidden, pairs * width)
        del hidden
        hidden = gated(run, gate, up, spec.expert.activation)
        del gate, up
    else:
        hidden = activation(run, hidden, spec.expert.activation)
    hidden = _grouped(run, hidden, spec, pairs, (spec.expert.output,), "experts down", merged)
    weighted = [ops.mul(tape, hidden, weights, "weighted expert outputs")]
    return _in_token_order(run, x, weighted)


def _on_all_tokens(run: Run, x: Tensor, spec: Experts) -> Tensor:
    """Llama4TextMoe and Llama4TextExperts: batched products of every expert with all tokens."""
    tape, pairs, width = run.tape, run.rows * spec.count, spec.expert.width
    scores = run.linear(x, spec.router, adapted=spec.router.derived, quantised=False)
    scores = ops.elementwise(tape, scores, "router scores", keeps="output")
    repeated = ops.copy(tape, x, "tokens for each expert", pairs * _width(spec))
    routed = ops.mul(tape, repeated, scores, "weighted tokens")
    del repeated
    joint = _grouped(run, routed, spec, pairs, spec.expert.projections, "experts up", None)
    gate, up = tape.view(joint, pairs * width), tape.view(joint, pairs * width)
    hidden = ops.mul(tape, up, activation(run, gate, spec.expert.activation), "gated product")
    result = _grouped(run, hidden, spec, pairs, (spec.expert.output,), "experts down", None)
    del hidden, gate, up, joint
    if spec.shared is None:
        return ops.copy(tape, result, "experts output", x.elements)
    shared = mlp(run, x, spec.shared)
    return ops.add(tape, shared, ops.copy(tape, result, "experts output", x.elements), "experts output")


def _one_by_one(run: Run, x: Tensor, spec: Experts) -> Tensor:
    """Frozen experts in a list of modules (MixtralSparseMoeBlock.forward before transformers 5): what autograd keeps adds up
    over them; without gradients one expert's even share of the tokens is alive at a time."""
    pairs = run.rows * spec.per_token
    if not run.tape.grad_enabled:
        pairs = -(-pairs // spec.count)
    chosen = ops.copy(run.tape, x, "tokens of each expert", pairs * _width(spec))
    run.copies = spec.count
    out = mlp(run, chosen, spec.expert, pairs)
    run.copies = 1
    return out


def _in_token_order(run: Run, x: Tensor, weighted: list[Tensor]) -> Tensor:
    """Expert outputs summed for each token; ``weighted`` is emptied as its variable is given the outputs in order."""
    back = ops.copy(run.tape, weighted[0], "expert outputs in token order")
    weighted.clear()
    total = ops.copy(run.tape, back, "experts output", x.elements)
    del back
    return ops.cast(run.tape, total, x.dtype, "experts output")


def _with_shared(run: Run, x: Tensor, result: Tensor, spec: Experts) -> Tensor:
    """The sum with the expert that all tokens pass."""
    assert spec.shared is not None
    shared = mlp(run, x, spec.shared)
    if spec.shared_gate is not None:
        gate = ops.elementwise(
            run.tape, run.linear(x, spec.shared_gate, quantised=False), "sigmoid gate", keeps="output"
        )
        shared = ops.mul(run.tape, shared, gate, "gated shared expert")
    return ops.add(run.tape, result, shared, "experts output")


def _width(spec: Experts) -> int:
    return spec.expert.projections[0].inputs


def _route(run: Run, x: Tensor, spec: Experts) -> Tensor:
    tape = run.tape
    logits = router_logits(run, x, spec.router, wide=spec.wide_router)
    scores = ops.softmax(
        tape, ops.cast(tape, logits, "float32", "router logits"), "router probabilities", "float32"
    )
    del logits
    top = ops.copy(tape, scores, "router top-k", run.rows * spec.per_token)
    tape.scratch(run.rows * spec.per_token * 3, "int64", "routing indices")
    return top if spec.wide_weights else ops.cast(tape, top, x.dtype, "routing weights")


def _grouped(
    run: Run,
    x: Tensor,
    spec: Experts,
    pairs: Size,
    linears: tuple[Linear, ...],
    name: str,
    merged: Merged | None,
) -> Tensor:
    """One grouped product over all experts' stacked weights (torch._grouped_mm)."""
    inputs, outputs = linears[0].inputs, sum(linear.outputs for linear in linears)
    fused = Linear(
        name=f"experts.{linears[0].name.rpartition('.')[2]}", inputs=inputs * spec.count, outputs=outputs
    )
    weight = None if merged is None else merged.weight(linears[0].name)
    if weight is None:
        weight = run.tape.parameter(fused.name, fused.inputs * outputs, run.weights, trainable=not run.frozen)
    return ops.linear(run.tape, x, weight, pairs * outputs, name)
