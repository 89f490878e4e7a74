"""BLOOM's attention, which transformers writes out: biases of positions are added in the product, and every step is a variable
that holds its scores until the function returns (models/bloom/modeling_bloom.py BloomAttention.forward)."""

from __future__ import annotations

from loadmaster.memory import ops
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Tensor
from loadmaster.models.spec import Attention


def written_out(spec: Attention) -> bool:
    """Whether a mixer is BLOOM's: ALiBi without scaled_dot_product_attention."""
    return spec.position == "alibi" and not spec.sdpa


def attention(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    """The mixer's output from its queries, keys and values."""
    tape = run.tape
    size = run.batch * spec.heads * run.queries * run.keys
    # A layer returns its weights beside its output, and BloomModel.forward's ``outputs`` has them while the next layer runs.
    # Where autograd is on it has saved them anyway.
    before = None if tape.grad_enabled else tape.new(size, q.dtype, "attention weights of the layer before")
    v = ops.copy(tape, v, "value flattened")
    scores = ops.matmul(tape, q, k, size, "attention scores")
    masked = ops.add(tape, scores, tape.constant(run.queries * run.keys, scores.dtype), "masked scores")
    weights = ops.cast(
        tape, ops.softmax(tape, masked, "attention weights", "float32"), q.dtype, "attention weights"
    )
    weights = ops.dropout(tape, weights, run.dropout(spec.dropout), "attention dropout")
    out = ops.matmul(tape, weights, v, run.rows * spec.heads * spec.value_dim, "attention output")
    out = ops.copy(tape, out, "attention output contiguous")
    result = run.linear(out, spec.output)
    del before, scores, masked, weights
    return result
