"""Softmax attention as transformers writes it: projections, rotary positions, the kernel, the output projection.

Mirrors LlamaAttention.forward, apply_rotary_pos_emb, integrations/sdpa_attention.py, eager_attention_forward and
DeepseekV3Attention.forward (MLA); kernels: aten/src/ATen/native/transformers/cuda (flash_attn/flash_api.cpp,
attention_backward.cu) for what flash and memory-efficient attention save and allocate.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size, minimum, surely
from loadmaster.jobs.job import AttentionKind
from loadmaster.memory import ops
from loadmaster.memory.blocks import bloom, position_bias
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Grads, Tape, Tensor
from loadmaster.models.spec import Attention

FLASH = ("flash", "flash2", "flash3")


def attention(run: Run, x: Tensor, spec: Attention, *, cached: bool = False) -> Tensor:
    """The mixer's output for input ``x`` (rows × hidden). ``cached``: new keys and values go to a KV cache, whose bytes
    are counted elsewhere; in a first pass they are the cache."""
    q, k, v = _latent(run, x, spec) if spec.latent is not None else projected(run, x, spec)
    del x
    if cached and k is not None and v is not None:
        k, v = run.tape.constant(k.elements, k.dtype), run.tape.constant(v.elements, v.dtype)
    if bloom.written_out(spec):
        return bloom.attention(run, q, k, v, spec)
    out = attend(run, q, k, v, spec)
    del q, k, v
    if spec.gated_output:
        gate = run.tape.new(out.elements, out.dtype, "gate")
        out = ops.mul(
            run.tape,
            out,
            ops.elementwise(run.tape, gate, "sigmoid gate", keeps="output"),
            "gated attention output",
        )
        del gate
    return run.linear(out, spec.output)


def attend(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    """The kernel's output, laid out for the output projection."""
    if spec.relative:
        return position_bias.disentangled(run, q, k, v, spec)
    kind = kernel(run, spec, q.dtype)
    if kind == "eager" and (len(spec.projections) == 1 or spec.latent is not None):
        v = ops.copy(run.tape, v, "value flattened")  # matmul copies a slice of a larger projection
    out = _attend(run, q, k, v, spec, kind)
    del q, k, v
    if kind in FLASH and _joined(spec):
        # The kernel's result has the query's memory layout; joined queries are head-major, so it is laid out anew.
        out = ops.copy(run.tape, out, "attention output contiguous")
    return out


def kernel(run: Run, spec: Attention, dtype: str) -> AttentionKind:
    """Which kernel CUDA takes: what is asked for, and under ``sdpa`` what its rules choose (sdp_utils.cpp: flash needs
    compute capability 8.0, 16-bit operands, a head of at most 256 and no mask; memory-efficient takes float32 and masks
    but no grouped heads, and no bfloat16 before 8.0; then the math path is left). A sliding window shorter than the
    sequence is a mask to transformers."""
    kind = run.job.attention
    if kind != "sdpa":
        return kind
    if not spec.sdpa or spec.softcap or spec.sinks or (spec.bias != "none" and not run.facts.biases_sdpa):
        return "eager"
    operand = run.tape.autocast or dtype
    if spec.grouping == "broadcast" and spec.heads != spec.kv_heads:
        return "math"
    if run.before_ampere and operand == "bfloat16":
        return "math"
    if masked(run, spec):
        return "efficient"
    if (
        not run.before_ampere
        and operand in ops.HALVES
        and max(spec.head_dim, spec.value_dim) <= 256
        and spec.head_dim == spec.value_dim
    ):
        return "flash"
    return "efficient" if spec.heads == spec.kv_heads or not grouped(spec) else "math"


def _seen(run: Run, spec: Attention) -> Size:
    """Keys a query can see, as the scores have columns for."""
    return run.source if spec.cross else run.keys


def masked(run: Run, spec: Attention) -> bool:
    """Whether transformers hands SDPA an explicit mask: a window shorter than the keys, positions as biases, or the model's
    own reasons."""
    if spec.position == "alibi" or spec.bias != "none" or spec.masked or spec.block_mask:
        return True
    return spec.window is not None and surely(run.keys > spec.window)


def grouped(spec: Attention) -> bool:
    """Whether transformers leaves the grouping of heads to SDPA (use_gqa_in_sdpa: no mask, a head of at most 256)."""
    return spec.heads != spec.kv_heads and spec.head_dim == spec.value_dim <= 256


def projected(run: Run, x: Tensor, spec: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, normed and with their positions, as the kernel takes them."""
    tape, rows = run.tape, run.rows
    kv_rows = run.batch * run.source if spec.cross else rows
    if run.facts.lora == "litgpt" and len(spec.projections) == 3 and not spec.cross:
        q, k, v = _slices(run, run.fused_qkv(x, spec.projections), spec)
    elif len(spec.projections) >= 3:
        q = run.linear(x, spec.projections[0])
        context = _context(run, spec) if spec.cross else x
        k = run.linear(context, spec.projections[1], kv_rows)
        v = run.linear(context, spec.projections[2], kv_rows)
        del context
    elif len(spec.projections) == 1:
        q, k, v = _slices(run, run.linear(x, spec.projections[0]), spec)
    else:
        q = run.linear(x, spec.projections[0])
        k, v = (
            tape.constant(rows * spec.kv_heads * spec.head_dim, q.dtype),
            tape.constant(rows * spec.kv_heads * spec.value_dim, q.dtype),
        )
    del x
    if spec.head_major:
        q = ops.copy(tape, q, "query contiguous")
        k, v = (x if x.storage is None else ops.copy(tape, x, "key or value contiguous") for x in (k, v))
    if spec.query_norm is not None:
        q = run.norm(q, spec.query_norm, "q_norm", q.elements // spec.query_norm.size)
    if spec.key_norm is not None and k.storage is not None:
        k = run.norm(k, spec.key_norm, "k_norm", k.elements // spec.key_norm.size)
    if spec.position != "rope" or spec.cross:
        return q, k, v
    rotated_q = _rotary(run, q, spec, spec.heads)
    rotated_k = _rotary(run, k, spec, spec.kv_heads) if k.storage is not None else k
    return rotated_q, rotated_k, v


def _context(run: Run, spec: Attention) -> Tensor:
    """The other tower's output, which that tower counts."""
    context = run.tape.constant(run.batch * run.source * spec.projections[1].inputs, run.residual)
    context.needs_grad = run.tape.grad_enabled and not run.frozen
    return context


def _slices(run: Run, fused: Tensor, spec: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as parts of one projection's output: views that hold all of it."""
    sizes = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.value_dim)
    q, k, v = (run.tape.view(fused, run.rows * size) for size in sizes)
    return q, k, v


def _rotary(run: Run, x: Tensor, spec: Attention, heads: int) -> Tensor:
    """``x * cos + rotate_half(x) * sin`` (modeling_llama.py apply_rotary_pos_emb); where only a part of a head turns,
    the parts are joined again."""
    tape = run.tape
    turned = spec.rotary_dim if spec.rotary_dim is not None else spec.head_dim
    part = x if turned == spec.head_dim else tape.view(x, run.rows * heads * turned)
    table = tape.constant(run.rows * turned, run.residual)
    straight = ops.mul(tape, part, table, "rotary x*cos")
    half = part.elements // 2
    second = ops.scale(tape, tape.view(part, half), "rotary -x2")
    rotated = ops.join(tape, [second, tape.view(part, half)], "rotary rotate_half")
    del second
    crossed = ops.mul(tape, rotated, table, "rotary x*sin")
    del rotated
    y = ops.add(tape, straight, crossed, "rotary output")
    del straight, crossed
    if spec.rotary_dim is None:
        return y
    rest = tape.view(x, run.rows * heads * (spec.head_dim - turned))
    return ops.join(tape, [y, rest], "rotary joined")


def _latent(run: Run, x: Tensor, spec: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Multi-head latent attention in its expanded form, as transformers trains and caches it (DeepseekV3Attention)."""
    tape, latent, rows = run.tape, spec.latent, run.rows
    assert latent is not None
    norms = dict(spec.inner_norms)
    chain = list(spec.projections)
    if latent.query_rank is not None:
        low = run.linear(x, chain.pop(0))
        if norms:
            low = run.norm(low, next(iter(norms.values())), "q_a_layernorm")
        q = run.linear(low, chain.pop(0))
        del low
    else:
        q = run.linear(x, chain.pop(0))
    compressed = run.linear(x, chain[0])
    del x
    low_kv = tape.view(compressed, rows * latent.kv_rank)
    key_rope = tape.view(compressed, rows * latent.rope_dim)
    del compressed
    if norms:
        low_kv = run.norm(low_kv, list(norms.values())[-1], "kv_a_layernorm")
    expanded = run.linear(low_kv, chain[1])
    del low_kv
    nope = tape.view(expanded, rows * spec.heads * latent.nope_dim)
    v = tape.view(expanded, rows * spec.heads * spec.value_dim)
    del expanded
    turned_q = _turned(run, tape.view(q, rows * spec.heads * latent.rope_dim))
    turned_k = _turned(run, key_rope)
    del key_rope
    query = ops.join(tape, [tape.view(q, rows * spec.heads * latent.nope_dim), turned_q], "query states")
    key = ops.join(
        tape,
        [nope, ops.copy(tape, turned_k, "rope key expanded", rows * spec.heads * latent.rope_dim)],
        "key states",
    )
    return query, key, v


def _turned(run: Run, x: Tensor) -> Tensor:
    tape = run.tape
    table = tape.constant(x.elements, run.residual)
    straight = ops.mul(tape, x, table, "rotary x*cos")
    rotated = ops.copy(tape, x, "rotary rotate_half")
    crossed = ops.mul(tape, rotated, table, "rotary x*sin")
    return ops.add(tape, straight, crossed, "rotary output")


def _joined(spec: Attention) -> bool:
    """Whether queries are laid out head by head: they come out of torch.cat (partial rotary positions, MLA) or a copy."""
    return (
        spec.head_major
        or spec.latent is not None
        or (spec.position == "rope" and spec.rotary_dim is not None)
    )


def _attend(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention, kind: AttentionKind) -> Tensor:
    if kind == "eager":
        return _eager(run, q, k, v, spec)
    if kind == "math":
        return _math(run, q, k, v, spec)
    tape = run.tape
    copies = spec.grouping == "repeat" or (run.facts.repeats_kv and run.job.attention == "sdpa")
    if spec.kv_heads != spec.heads and (kind == "efficient" or copies):
        k, v = _repeat(run, k, spec, "key"), _repeat(run, v, spec, "value")
    q, k, v = ops.lower(tape, q, "query"), ops.lower(tape, k, "key"), ops.lower(tape, v, "value")
    bias = _mask(run, spec, q.dtype) if kind == "efficient" and masked(run, spec) else None
    sized = run.batch * spec.heads * run.queries * _seen(run, spec)
    operator = kind if kind in ("flash2", "flash3") else "attention"
    out = tape.output(operator, run.rows * spec.heads * spec.value_dim, q.dtype, "attention output")
    stats = tape.output(operator, run.rows * spec.heads, "float32", "attention logsumexp")
    sizes = [(t.elements, t.dtype, t.needs_grad) for t in (q, k, v)]
    learned = bias is not None and bias.needs_grad
    rows, heads, dim = run.rows, spec.heads, spec.head_dim
    groups = k.elements is not q.elements and spec.kv_heads != spec.heads

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        # flash_api.cpp mha_bwd: dq_accum in float32 and softmax_d; grouped heads get expanded dk and dv, then summed.
        # hopper/flash_api.cpp: float32 dk_accum and dv_accum of the grouped heads instead.
        # torch/_inductor/kernel/flex: delta and the gradient of logsumexp, no accumulators.
        held = [t.new(e, d, "attention gradient") for e, d, need in sizes if need]
        biased = [t.new(sized, sizes[0][1], "gradient of the mask")] if learned else []
        scratch = [t.new(rows * heads, "float32", "softmax_d")]
        if kind == "flex":
            scratch.append(t.new(rows * heads, "float32", "logsumexp gradient"))
        else:
            scratch.append(t.new(rows * heads * dim, "float32", "dq_accum"))
        if groups and kind in ("flash", "flash2"):
            scratch += [t.new(rows * heads * dim, sizes[0][1], f"{n} expanded") for n in ("dk", "dv")]
        if groups and kind == "flash3":
            scratch += [t.new(sizes[i][0], "float32", f"{n}_accum") for i, n in ((1, "dk"), (2, "dv"))]
        scratch.clear()
        grads = iter(held)
        found: list[Tensor | None] = [next(grads) if need else None for _, _, need in sizes]
        return [*found, biased.pop() if biased else None]

    masks = [] if bias is None else [bias]
    return tape.record("sdpa", [q, k, v, *masks], out, [q, k, v, out, stats, *masks], backward)


def _mask(run: Run, spec: Attention, dtype: str) -> Tensor:
    """What SDPA takes as its mask. A bool mask becomes a tensor of the query's type in every layer (attention.cpp,
    convert_boolean_attn_mask); positions come as a bias of every head."""
    if spec.bias != "none":
        return ops.lower(run.tape, position_bias.mask(run, spec, dtype), "position bias")
    if spec.block_mask:
        return position_bias.aligned(run, _seen(run, spec))
    return run.tape.new(run.batch * run.queries * _seen(run, spec), dtype, "attention mask")


def _math(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    """attention.cpp _scaled_dot_product_attention_math: 16-bit operands become float32 (allowFP16BF16ReductionMathSDP is off),
    heads are repeated, both operands scaled, the scores written in full, and a copy of the weights is made in the operands'
    format, which nobody takes. Autocast ends at the operator's door."""
    tape, autocast = run.tape, run.tape.autocast
    q, k, v = ops.lower(tape, q, "query"), ops.lower(tape, k, "key"), ops.lower(tape, v, "value")
    before, tape.autocast = q.dtype, None
    # Every step is a local variable of the function, there until it returns.
    steps = [q, k, v]
    if run.facts.math_in_float32:
        q, k, v = (ops.cast(tape, x, "float32", "attention operand float32") for x in (q, k, v))
        steps += [q, k, v]
    shared = spec.grouping == "broadcast" and spec.kv_heads != spec.heads
    if spec.kv_heads != spec.heads and not shared:
        k, v = _repeat(run, k, spec, "key"), _repeat(run, v, spec, "value")
        steps += [k, v]
    q, k = ops.scale(tape, q, "scaled query"), ops.scale(tape, k, "scaled key")
    steps += [q, k]
    size = run.batch * spec.heads * run.queries * _seen(run, spec)
    scores = ops.matmul(tape, q, _broadcast(run, k, spec) if shared else k, size, "attention scores")
    weights = ops.softmax(tape, scores, "attention weights", scores.dtype)
    if run.facts.math_in_float32:
        tape.scratch(size, "bool", "scores that are minus infinity")  # SoftMax.cpp _safe_softmax, torch 2.5
    del scores
    v = _broadcast(run, v, spec) if shared else v
    out = ops.matmul(tape, weights, v, run.rows * spec.heads * spec.value_dim, "attention output")
    out = ops.cast(tape, out, before, "attention output")
    if before != "float32" and run.facts.math_in_float32:
        tape.scratch(size, before, "attention weights")
    tape.autocast = autocast
    return out


def _broadcast(run: Run, x: Tensor, spec: Attention) -> Tensor:
    """Keys or values that all query heads share, as at::matmul takes them: expanded and reshaped to one batch of matrices,
    without a copy where there is one sequence."""
    elements, copied = x.elements * (spec.heads // spec.kv_heads), minimum(run.batch - 1, 1)
    return ops.expand(run.tape, x, elements, "key or value of all heads", copied)


def _eager(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    """eager_attention_forward: scores, scaled, masked, softmax in float32, cast back, dropout, times values."""
    tape = run.tape
    if spec.kv_heads != spec.heads:
        k, v = _repeat(run, k, spec, "key"), _repeat(run, v, spec, "value")
    size = run.batch * spec.heads * run.queries * _seen(run, spec)
    scores = ops.scale(tape, ops.matmul(tape, q, k, size, "attention scores"), "scaled scores")
    if spec.softcap:
        capped = ops.elementwise(tape, ops.scale(tape, scores, "scores / cap"), "tanh scores", keeps="output")
        scores = ops.scale(tape, capped, "capped scores")
        del capped
    if spec.bias != "none":
        scores = ops.add(tape, scores, position_bias.bias(run, spec, scores.dtype), "scores with bias")
    if spec.causal:
        scores = ops.add(
            tape, scores, tape.constant(run.queries * _seen(run, spec), scores.dtype), "masked scores"
        )
    weights = _sink_softmax(run, scores, spec, size) if spec.sinks else _softmax(run, scores, q.dtype, spec)
    del scores
    weights = ops.dropout(tape, weights, run.dropout(spec.dropout), "attention dropout")
    out = ops.matmul(tape, weights, v, run.rows * spec.heads * spec.value_dim, "attention output")
    return ops.copy(tape, out, "attention output contiguous")


def _softmax(run: Run, scores: Tensor, dtype: str, spec: Attention) -> Tensor:
    if run.facts.float_scores:
        scores = ops.cast(run.tape, scores, "float32", "attention scores float32")
    weights = ops.softmax(run.tape, scores, "attention weights", "float32" if spec.wide_softmax else None)
    del scores
    return ops.cast(run.tape, weights, dtype, "attention weights")


def _sink_softmax(run: Run, scores: Tensor, spec: Attention, size: Size) -> Tensor:
    """gpt-oss: one more column for the sinks, the row's maximum taken off, softmax in the scores' format, column dropped."""
    tape = run.tape
    wide = ops.copy(tape, scores, "scores with sinks", size + run.rows * spec.heads)
    shifted = ops.copy(tape, wide, "scores minus maximum")
    del wide
    weights = ops.softmax(tape, shifted, "attention weights", shifted.dtype)
    return tape.view(weights, size)


def _repeat(run: Run, x: Tensor, spec: Attention, name: str) -> Tensor:
    """transformers' repeat_kv: keys and values copied to all heads."""
    return ops.copy(run.tape, x, f"{name} repeated to all heads", x.elements * (spec.heads // spec.kv_heads))
