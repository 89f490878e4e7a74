"""A product of bitsandbytes' LLM.int8().

Mirrors bitsandbytes 0.50 autograd/_functions.py MatMul8bitLt and backends/cuda/ops.py int8_mm_dequant: the input is quantised
from float16, the int32 product is scaled to float16 and cast to the input's format, and backward makes the weight in that format.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.memory.tape import Grads, Tape, Tensor


def product(tape: Tape, x: Tensor, weight: Size, outputs: Size, scratch: Size, name: str) -> Tensor:
    """The output of a frozen 8-bit layer. Its input stays as a plain attribute of the graph's node (``ctx.tensors``), though
    nothing reads it again: checkpointing, which sees saved tensors alone, doesn't free it, nor does the pass back."""
    codes = tape.new(scratch, "uint8", "kernel of packed weights", tag="dequantised weights")
    y = tape.new(outputs, "float16", f"{name} output")
    if x.dtype != "float16":
        half, y = y, tape.new(outputs, x.dtype, f"{name} output")
        del half
    del codes
    elements, dtype = x.elements, x.dtype

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        wide = t.new(weight, dtype, "dequantised weight", tag="dequantised weights")
        grad = t.new(elements, dtype, f"{name} gradient")
        del wide
        return [grad]

    if x.storage is not None and (x.needs_grad or not tape.grad_enabled):
        tape.attribute(x.storage)
    return tape.record("linear8bit", [x], y, [], backward)
