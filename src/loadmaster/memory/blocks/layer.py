"""One layer: norms, mixer, feed-forward and residual sums in the order of transformers' decoder layers."""

from __future__ import annotations

from loadmaster.memory import ops
from loadmaster.memory.blocks.attention import attention
from loadmaster.memory.blocks.feedforward import feedforward
from loadmaster.memory.blocks.position_bias import handed_on
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.blocks.state_space import state_space
from loadmaster.memory.tape import Tensor
from loadmaster.models.spec import Attention, Block, Mixer, Norm


def layer(run: Run, x: Tensor, block: Block, *, cached: bool = False) -> Tensor:
    """The layer's output. The caller keeps its own name on ``x`` while the layer runs, as transformers' loop does."""
    norms = dict(block.norms)
    run.passed[:] = handed_on(run, block)
    if block.parallel:
        return _parallel(run, x, block, norms, cached)
    if block.mixer is not None:
        x = _sublayer(run, x, block.mixer, block, "mixer", cached=cached)
    if block.cross is not None:
        x = _sublayer(run, x, block.cross, block, "cross", cached=cached)
    if block.feedforward is not None:
        residual = x
        y = _normed(run, x, norms, "pre_feedforward")
        del x
        y = _normed(
            run, feedforward(run, y, block.feedforward), norms, "post_feedforward", inside=not block.post_norm
        )
        x = ops.add(run.tape, residual, y, "residual stream")
        del residual, y
        if block.post_norm:
            x = _normed(run, x, norms, "post_feedforward")
    return x


def _sublayer(run: Run, x: Tensor, mixer: Mixer, block: Block, place: str, *, cached: bool) -> Tensor:
    norms = dict(block.norms)
    residual = x
    y = _normed(run, x, norms, f"pre_{place}")
    del x
    y = ops.dropout(run.tape, _mix(run, y, mixer, cached=cached), run.dropout(block.dropout))
    y = _normed(run, y, norms, f"post_{place}", inside=not block.post_norm)
    x = ops.add(run.tape, residual, y, "residual stream")
    del residual, y
    return _normed(run, x, norms, f"post_{place}") if block.post_norm else x


def _mix(run: Run, x: Tensor, mixer: Mixer, *, cached: bool) -> Tensor:
    return (
        attention(run, x, mixer, cached=cached)
        if isinstance(mixer, Attention)
        else state_space(run, x, mixer)
    )


def _normed(run: Run, x: Tensor, norms: dict[str, Norm], place: str, *, inside: bool = True) -> Tensor:
    norm = norms.get(place) if inside else None
    return x if norm is None else run.norm(x, norm, place)


def _parallel(run: Run, x: Tensor, block: Block, norms: dict[str, Norm], cached: bool) -> Tensor:
    """``x + mixer(norm(x)) + mlp(norm(x))`` (GPT-J, GPT-NeoX, Falcon, Phi-2)."""
    y = _normed(run, x, norms, "pre_mixer")
    chance = run.dropout(block.dropout)
    mixed = (
        ops.dropout(run.tape, _mix(run, y, block.mixer, cached=cached), chance)
        if block.mixer is not None
        else None
    )
    if "pre_feedforward" in norms:
        y = _normed(run, x, norms, "pre_feedforward")
    fed = (
        ops.dropout(run.tape, feedforward(run, y, block.feedforward), chance)
        if block.feedforward is not None
        else None
    )
    del y
    both = (
        ops.add(run.tape, fed, mixed, "parallel branches")
        if fed is not None and mixed is not None
        else fed or mixed
    )
    assert both is not None
    del fed, mixed
    return ops.add(run.tape, both, x, "residual stream")
