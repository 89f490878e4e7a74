"""Blocks of diffusion transformers (FLUX, Stable Diffusion 3, CogVideoX): norms modulated by the time step, gates, rotary
positions in float32, image and text tokens attending together.

Mirrors diffusers' FluxTransformerBlock, FluxSingleTransformerBlock, JointTransformerBlock and embeddings.apply_rotary_emb.
Image and text have matrices of the same shapes, so a joint block costs what one stream of all tokens costs.
"""

from __future__ import annotations

from loadmaster.memory import ops
from loadmaster.memory.blocks.attention import attend, projected
from loadmaster.memory.blocks.feedforward import activation, feedforward, gated
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Tensor
from loadmaster.models.spec import Attention, Block


def diffusion_layer(run: Run, x: Tensor, block: Block) -> Tensor:
    """The layer's output for all tokens, image and text together."""
    mixer = block.mixer
    assert isinstance(mixer, Attention)
    if block.feedforward is None:
        return _single(run, x, block, mixer)
    y = _modulated(run, x, "norm1")
    y = run.linear(_attended(run, *projected(run, y, mixer), mixer), mixer.output)
    x = ops.add(run.tape, x, ops.scale(run.tape, y, "gated attention"), "residual stream")
    y = _modulated(run, x, "norm2")
    y = feedforward(run, y, block.feedforward)
    return ops.add(run.tape, x, ops.scale(run.tape, y, "gated feed-forward"), "residual stream")


def _modulated(run: Run, x: Tensor, name: str) -> Tensor:
    """LayerNorm without weights, then ``* (1 + scale) + shift`` with vectors of the time step."""
    normed = ops.native_norm(run.tape, x, None, run.rows, name)
    vector = run.tape.constant(run.batch * (x.elements // run.rows), x.dtype)
    vector.needs_grad = run.tape.grad_enabled and not run.frozen
    scaled = ops.mul(run.tape, normed, vector, f"{name} scaled")
    del normed
    return ops.add(run.tape, scaled, run.tape.constant(x.elements, x.dtype), f"{name} shifted")


def _attended(run: Run, q: Tensor, k: Tensor, v: Tensor, spec: Attention) -> Tensor:
    q, k = _rotary(run, q), _rotary(run, k)
    return attend(run, q, k, v, spec)


def _rotary(run: Run, x: Tensor) -> Tensor:
    """``(x.float() * cos + rotated(x).float() * sin).to(x.dtype)``."""
    tape = run.tape
    table = tape.constant(x.elements, "float32")
    straight = ops.mul(tape, ops.cast(tape, x, "float32", "rotary float32"), table, "rotary x*cos")
    rotated = ops.cast(tape, ops.copy(tape, x, "rotary rotated"), "float32", "rotary float32")
    crossed = ops.mul(tape, rotated, table, "rotary x*sin")
    del rotated
    wide = ops.add(tape, straight, crossed, "rotary sum")
    del straight, crossed
    return ops.cast(tape, wide, x.dtype, "rotary output")


def _single(run: Run, x: Tensor, block: Block, mixer: Attention) -> Tensor:
    """Attention and feed-forward side by side, one matrix taking both back."""
    y = _modulated(run, x, "norm")
    parts = _shared if len(mixer.projections) == 1 else _apart
    both = ops.join(run.tape, parts(run, y, block, mixer), "attention and feed-forward")
    del y
    out = run.linear(both, mixer.output)
    return ops.add(run.tape, x, ops.scale(run.tape, out, "gated output"), "residual stream")


def _shared(run: Run, x: Tensor, block: Block, mixer: Attention) -> list[Tensor]:
    """FLUX.2: one matrix makes queries, keys, values and both halves of the feed-forward."""
    tape, rows, width = run.tape, run.rows, mixer.heads * mixer.value_dim
    inner = mixer.output.inputs - width
    whole = run.linear(x, mixer.projections[0])
    q, k, v = (tape.view(whole, rows * width) for _ in range(3))
    gate, up = (tape.view(whole, rows * inner) for _ in range(2))
    del whole
    fed = gated(run, gate, up, "silu")
    del gate, up
    if mixer.query_norm is not None:
        q = run.norm(q, mixer.query_norm, "norm_q", q.elements // mixer.head_dim)
    if mixer.key_norm is not None:
        k = run.norm(k, mixer.key_norm, "norm_k", k.elements // mixer.head_dim)
    return [_attended(run, q, k, v, mixer), fed]


def _apart(run: Run, x: Tensor, block: Block, mixer: Attention) -> list[Tensor]:
    """FLUX.1: queries, keys, values and the feed-forward have matrices of their own."""
    inner = mixer.output.inputs - mixer.heads * mixer.value_dim
    up = next(linear for linear in block.linears if linear.outputs == inner)
    fed = activation(run, run.linear(x, up), "gelu_pytorch_tanh")
    return [_attended(run, *projected(run, x, mixer), mixer), fed]
