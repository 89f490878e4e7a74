"""Recurrent mixers (Mamba 1 and 2, gated delta rule) with their fused kernels: projections, short convolution, scan.

Mirrors MambaMixer.cuda_kernels_forward and Mamba2Mixer.cuda_kernels_forward: the fused scan saves its inputs and
chunk states, not one state a token.
"""

from __future__ import annotations

from loadmaster.memory import ops
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.tape import Tensor
from loadmaster.models.spec import StateSpace

CHUNK = 256
"""Tokens between stored states: chunk_size of the mamba-ssm kernels' default configuration."""


def state_space(run: Run, x: Tensor, spec: StateSpace) -> Tensor:
    """The mixer's output for input ``x`` (rows × hidden)."""
    tape, rows = run.tape, run.rows
    projected = [run.linear(x, linear) for linear in spec.projections[:1]]
    del x
    first = projected.pop()
    convolved = ops.elementwise(tape, tape.view(first, rows * spec.conv_channels), "causal convolution")
    inner = ops.elementwise(tape, tape.view(convolved, rows * spec.inner), "selective scan")
    del convolved, first
    states = run.batch * -(-run.queries // CHUNK) * spec.inner * spec.state
    kept = tape.new(states, "float32", "chunk states")
    gated = ops.mul(
        tape, inner, ops.elementwise(tape, tape.view(inner, rows * spec.inner), "gate"), "gated state output"
    )
    del inner, kept
    return run.linear(gated, spec.output)
