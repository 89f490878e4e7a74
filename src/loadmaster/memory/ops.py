"""PyTorch's operators on the tape: what each allocates, what autograd saves for it and what its backward allocates.

Sources: tools/autograd/derivatives.yaml for what is saved; FunctionsManual.cpp for backward formulas;
autocast_mode.h for which operators run in which precision; named otherwise beside the operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.dtypes import itemsize
from loadmaster.memory.tape import Grads, Tape, Tensor

HALVES = ("float16", "bfloat16")


def cast(tape: Tape, x: Tensor, dtype: str, name: str = "cast") -> Tensor:
    """``x.to(dtype)``: a copy when the type differs; its backward casts the gradient back."""
    if x.dtype == dtype:
        return x
    y = tape.new(x.elements, dtype, name)
    elements, before = x.elements, x.dtype
    return tape.record("to", [x], y, [], lambda t, g, s: [t.new(elements, before, "cast gradient")])


def lower(tape: Tape, x: Tensor, name: str) -> Tensor:
    """An operand of an operator that autocast runs in its lower precision; casts of float32 leaves that require a
    gradient are cached until autocast ends (autocast_mode.cpp, cached_cast)."""
    if tape.autocast is None or x.dtype not in ("float32", *HALVES) or x.dtype == tape.autocast:
        return x
    leaf = x.leaf if x.node is None and x.needs_grad and x.dtype == "float32" and x.storage is None else None
    if leaf is not None and leaf in tape.casts:
        return tape.casts[leaf]
    y = cast(tape, x, tape.autocast, name)
    if x.storage is None and y.storage is not None:
        y.storage.tag = "autocast copies"
    if leaf is not None:
        tape.casts[leaf] = y
    return y


def widest(tape: Tape, x: Tensor, name: str = "cast to float32") -> Tensor:
    """An operand of an operator that autocast runs in float32 (pow, softmax, layer_norm, losses ...)."""
    return cast(tape, x, "float32", name) if tape.autocast and x.dtype in HALVES else x


def promoted(*dtypes: str) -> str:
    """The type that two floating operands give: the wider; float16 with bfloat16 gives float32."""
    first = dtypes[0]
    for other in dtypes[1:]:
        if other != first:
            first = (
                first
                if itemsize(first) > itemsize(other)
                else other
                if itemsize(other) > itemsize(first)
                else "float32"
            )
    return first


def linear(
    tape: Tape, x: Tensor, weight: Tensor, outputs: Size, name: str, *, bias: Tensor | None = None
) -> Tensor:
    """``x @ W.T (+ b)``: saves the input if W is trained, W if the input needs a gradient. ``outputs``: elements out."""
    x, weight = lower(tape, x, f"{name} input"), lower(tape, weight, f"{name} weight")
    operator = "mm" if bias is None else "addmm"
    y = tape.output(operator, outputs, promoted(x.dtype, weight.dtype), f"{name} output")
    inputs = [x, weight]
    if bias is not None:
        inputs.append(lower(tape, bias, f"{name} bias"))
    saved = [*([x] if weight.needs_grad else []), *([weight] if x.needs_grad else [])]
    sizes = [(i.elements, i.dtype, i.needs_grad) for i in inputs]

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [_viewed(t.new(e, d, f"{name} gradient")) if need else None for e, d, need in sizes]

    return tape.record("linear", inputs, y, saved, backward)


def _viewed(grad: Tensor) -> Tensor:
    """Gradients of matrix products are views of a flat or transposed product."""
    grad.shared = True
    return grad


def add(tape: Tape, a: Tensor, b: Tensor, name: str = "sum") -> Tensor:
    """``a + b``: saves nothing; both gradients are the incoming one."""
    y = tape.new(a.elements, promoted(a.dtype, b.dtype), name)
    types = (a.dtype, b.dtype)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        got = g[0]
        assert got is not None
        got.shared = True
        return [got if d == got.dtype else t.new(got.elements, d, "cast gradient") for d in types]

    return tape.record("add", [a, b], y, [], backward)


def mul(tape: Tape, a: Tensor, b: Tensor, name: str, elements: Size | None = None) -> Tensor:
    """``a * b`` with broadcasting to ``elements`` (default a's): each operand is saved if the other needs a gradient;
    gradients are made full size, then summed to the operand's shape (mul_tensor_backward)."""
    full = a.elements if elements is None else elements
    y = tape.new(full, promoted(a.dtype, b.dtype), name)
    out = y.dtype
    needs = (a.needs_grad, b.needs_grad)
    saved = [*([b] if needs[0] else []), *([a] if needs[1] else [])]
    types = (a.dtype, b.dtype)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        grads = [t.new(full, out, f"{name} gradient") if need else None for need in needs]
        # What the node has returned is cast one by one, beside what it was given (engine.cpp call_function, validate_outputs).
        for index, dtype in enumerate(types):
            if grads[index] is not None and dtype != out:
                grads[index] = t.new(full, dtype, f"{name} gradient")
        return grads

    return tape.record("mul", [a, b], y, saved, backward)


def scale(tape: Tape, x: Tensor, name: str = "scaled") -> Tensor:
    """``x * number``: saves nothing."""
    y = tape.new(x.elements, x.dtype, name)
    elements, dtype = x.elements, x.dtype
    return tape.record("scale", [x], y, [], lambda t, g, s: [t.new(elements, dtype, f"{name} gradient")])


def elementwise(tape: Tape, x: Tensor, name: str, *, keeps: str = "input", scratch: int = 0) -> Tensor:
    """An activation that saves its input (silu, gelu, pow) or its result (sigmoid, tanh, relu, exp, rsqrt);
    ``scratch`` counts full-size temporaries of a backward that is written as several operators."""
    y = tape.new(x.elements, x.dtype, name)
    elements, dtype = x.elements, x.dtype

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        held = [t.new(elements, dtype, f"{name} gradient") for _ in range(scratch)]
        grad = t.new(elements, dtype, f"{name} gradient")
        held.clear()
        return [grad]

    return tape.record(name, [x], y, [x if keeps == "input" else y], backward)


def dropout(tape: Tape, x: Tensor, probability: float, name: str = "dropout") -> Tensor:
    """torch.native_dropout on CUDA: the result and a bool mask, which is saved."""
    if probability == 0:
        return x
    y = tape.new(x.elements, x.dtype, name)
    mask = tape.new(x.elements, "bool", f"{name} mask")
    elements, dtype = x.elements, x.dtype
    return tape.record(
        "dropout", [x], y, [mask], lambda t, g, s: [t.new(elements, dtype, f"{name} gradient")]
    )


def copy(tape: Tape, x: Tensor, name: str, elements: Size | None = None) -> Tensor:
    """A copy in another layout or length: contiguous(), cat, expand + reshape (repeat_kv), index_select."""
    y = tape.new(x.elements if elements is None else elements, x.dtype, name)
    before, dtype = x.elements, x.dtype
    return tape.record("copy", [x], y, [], lambda t, g, s: [t.new(before, dtype, f"{name} gradient")])


def expand(tape: Tape, x: Tensor, elements: Size, name: str, copied: Size) -> Tensor:
    """``x`` seen ``elements`` long, as a product takes it: a copy where ``copied`` is 1, else a view that stays one when its
    dimensions are joined; its gradient is made in full, then summed."""
    view = isinstance(copied, int) and copied == 0
    storage = x.storage if view else tape.new(elements * copied, x.dtype, name).storage
    before, dtype = x.elements, x.dtype
    y = Tensor(elements, dtype, storage)
    return tape.record("expand", [x], y, [], lambda t, g, s: [t.new(before, dtype, f"{name} gradient")])


def placed(tape: Tape, x: Tensor, elements: Size, name: str) -> Tensor:
    """torch.index_copy of ``x`` into zeros of ``elements``: autograd keeps ``x`` for its shape (derivatives.yaml)."""
    zeros = tape.new(elements, x.dtype, f"{name} zeros")
    y = tape.new(elements, x.dtype, name)
    del zeros
    before, dtype = x.elements, x.dtype
    return tape.record("index_copy", [x], y, [x], lambda t, g, s: [t.new(before, dtype, f"{name} gradient")])


def gated_product(tape: Tape, gate: Tensor, up: Tensor) -> Tensor:
    """``act(gate) * up`` compiled into one kernel: the activation is made again in backward, not kept."""
    y = tape.new(up.elements, up.dtype, "gated product")
    elements, dtype = up.elements, up.dtype

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [t.new(elements, dtype, "gated product gradient") for _ in range(2)]

    return tape.record("gated", [gate, up], y, [gate, up], backward)


def join(tape: Tape, parts: Sequence[Tensor], name: str) -> Tensor:
    """torch.cat: a new tensor; the gradients of its parts are views of the incoming one."""
    total: Size = 0
    for part in parts:
        total = total + part.elements
    y = tape.new(total, promoted(*(p.dtype for p in parts)), name)
    sizes = [p.elements for p in parts]

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        got = g[0]
        assert got is not None
        return [Tensor(e, got.dtype, got.storage) for e in sizes]

    return tape.record("cat", list(parts), y, [], backward)


def matmul(tape: Tape, a: Tensor, b: Tensor, elements: Size, name: str) -> Tensor:
    """Batched matrix product of two activations: each is saved if the other needs a gradient."""
    a, b = lower(tape, a, f"{name} input"), lower(tape, b, f"{name} input")
    y = tape.new(elements, promoted(a.dtype, b.dtype), name)
    sizes = [(i.elements, i.dtype, i.needs_grad) for i in (a, b)]
    saved = [*([b] if a.needs_grad else []), *([a] if b.needs_grad else [])]

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [_viewed(t.new(e, d, f"{name} gradient")) if need else None for e, d, need in sizes]

    return tape.record("matmul", [a, b], y, saved, backward)


def softmax(tape: Tape, x: Tensor, name: str, dtype: str | None = None) -> Tensor:
    """softmax in ``dtype``: the input is converted first, but on CUDA float16 → float32 is one kernel (SoftMax.cpp: no such
    for bfloat16); saves its result; backward makes one tensor of the input's type."""
    out = dtype or ("float32" if tape.autocast and x.dtype in HALVES else x.dtype)
    if not (x.dtype == "float16" and out == "float32"):
        x = cast(tape, x, out, f"{name}: input converted")
    y = tape.new(x.elements, out, name)
    elements, before = x.elements, x.dtype

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [t.new(elements, before, f"{name} gradient")]

    return tape.record("softmax", [x], y, [y], backward)


def rms_norm(
    tape: Tape,
    x: Tensor,
    weight: Tensor | None,
    rows: Size,
    name: str,
    *,
    plus_one: bool = False,
    wide_scale: bool = False,
    narrow: bool = False,
) -> Tensor:
    """transformers' LlamaRMSNorm.forward, operator by operator (``plus_one``: Gemma's, ``wide_scale``: OLMo 2's,
    ``narrow``: T5's)."""
    dtype = x.dtype
    wide = cast(tape, x, "float32", f"{name} float32 copy")
    square = elementwise(tape, wide, f"{name} pow", scratch=2)
    mean = _mean(tape, square, rows, name)
    del square
    inverse = elementwise(tape, mean, f"{name} rsqrt", keeps="output")
    del mean
    normed = mul(tape, x if narrow else wide, inverse, f"{name} normed float32")
    del wide, inverse
    if weight is not None and wide_scale:
        scaled = mul(tape, weight, normed, f"{name} scaled", elements=x.elements)
        return cast(tape, scaled, dtype, f"{name} output")
    if weight is not None and plus_one:
        scaled = mul(tape, normed, _plus_one(tape, weight, name), f"{name} scaled")
        return cast(tape, scaled, dtype, f"{name} output")
    half = cast(tape, normed, dtype, f"{name} normed")
    return half if weight is None else mul(tape, weight, half, f"{name} output", elements=x.elements)


def _plus_one(tape: Tape, weight: Tensor, name: str) -> Tensor:
    """``1.0 + weight.float()`` of Gemma's norms: a vector."""
    y = tape.new(weight.elements, "float32", f"{name} weight")
    elements, dtype = weight.elements, weight.dtype
    return tape.record(
        "to", [weight], y, [], lambda t, g, s: [t.new(elements, dtype, f"{name} weight gradient")]
    )


def _mean(tape: Tape, x: Tensor, rows: Size, name: str) -> Tensor:
    y = tape.new(rows, x.dtype, f"{name} mean")
    elements, dtype = x.elements, x.dtype
    return tape.record("mean", [x], y, [], lambda t, g, s: [t.new(elements, dtype, f"{name} mean gradient")])


def native_norm(
    tape: Tape,
    x: Tensor,
    weight: Tensor | None,
    rows: Size,
    name: str,
    *,
    kind: str = "layer",
    bias: Tensor | None = None,
) -> Tensor:
    """torch.nn.LayerNorm / RMSNorm as one kernel: saves its input and one or two float32 statistics a row."""
    x = widest(tape, x)
    y = tape.new(x.elements, x.dtype, f"{name} output")
    stats = [tape.new(rows, "float32", f"{name} statistics") for _ in range(2 if kind == "layer" else 1)]
    inputs = [t for t in (x, weight, bias) if t is not None]
    sizes = [(i.elements, i.dtype, i.needs_grad) for i in inputs]

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        return [t.new(e, d, f"{name} gradient") if need else None for e, d, need in sizes]

    saved = [x, *stats, *([weight] if weight is not None else [])]
    return tape.record("native_norm", inputs, y, saved, backward)
