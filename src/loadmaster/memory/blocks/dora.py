"""DoRA around a linear layer (arXiv:2402.09353), with the full-size temporaries that PEFT makes in every forward pass.

Mirrors peft/tuners/lora/dora.py DoraLinearLayer.forward and get_lora_weight (an identity matrix goes through both adapters,
so that B·A exists as a matrix with a graph), get_weight_norm (the scaled update and its sum with the weight), and
variants.py DoraLinearVariant.forward (with dropout the base product is computed again, in the adapters' format).
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.arrays import Size
from loadmaster.jobs.job import Lora
from loadmaster.memory import ops
from loadmaster.memory.tape import Tape, Tensor
from loadmaster.models.spec import Linear


def adapted(
    tape: Tape,
    lora: Lora,
    layer: Linear,
    x: Tensor,
    result: Tensor,
    adapter: tuple[Tensor, Tensor],
    base: Callable[[], Tensor],
    rows: Size,
) -> Tensor:
    """``result`` plus DoRA's update. ``adapter`` holds A and B; ``base`` gives the frozen weight, unpacked if it was packed."""
    dropped = ops.dropout(tape, x, lora.dropout, "DoRA dropout")
    del x
    update = _update(tape, lora, layer, dropped, None if lora.dropout else result, adapter, base, rows)
    return ops.add(tape, result, update, f"{layer.name} with DoRA")


def _update(
    tape: Tape,
    lora: Lora,
    layer: Linear,
    x: Tensor,
    result: Tensor | None,
    adapter: tuple[Tensor, Tensor],
    base: Callable[[], Tensor],
    rows: Size,
) -> Tensor:
    outputs = rows * layer.outputs
    product = _product(tape, lora, layer, adapter)
    weight = ops.cast(tape, base(), x.dtype, "DoRA weight copy")
    norm = _norm(tape, layer, weight)
    magnitude = tape.parameter(f"{layer.name}.magnitude", layer.outputs, lora.dtype, trainable=True)
    scale = ops.mul(tape, magnitude, norm, "DoRA magnitude / norm")
    low = ops.linear(tape, x, adapter[0], rows * lora.rank, "LoRA A")
    low = ops.linear(tape, low, adapter[1], outputs, "LoRA B")
    if result is None:
        result = ops.linear(tape, x, weight, outputs, "DoRA base product")
    elif layer.bias:
        result = ops.scale(tape, result, "DoRA base product without bias")
    first = ops.mul(
        tape, ops.scale(tape, scale, "DoRA magnitude"), result, "DoRA base part", elements=outputs
    )
    second = ops.scale(
        tape, ops.mul(tape, scale, low, "DoRA low-rank part", elements=outputs), "DoRA scaled part"
    )
    update = ops.add(tape, first, second, "DoRA update")
    del product, weight
    return update


def _product(tape: Tape, lora: Lora, layer: Linear, adapter: tuple[Tensor, Tensor]) -> list[Tensor]:
    """``lora_B(lora_A(torch.eye(inputs))).T`` and what its graph saves. Only a detached copy is used, so that the graph
    goes when the name of its result goes: it never reaches the loss."""
    grad, tape.grad_enabled = tape.grad_enabled, False
    eye = tape.new(layer.inputs * layer.inputs, lora.dtype, "DoRA identity")
    low = ops.linear(tape, eye, adapter[0], layer.inputs * lora.rank, "DoRA A")
    product = ops.linear(tape, low, adapter[1], layer.inputs * layer.outputs, "DoRA B·A")
    tape.grad_enabled = grad
    return [eye, low, product] if grad else [product]


def _norm(tape: Tape, layer: Linear, weight: Tensor) -> Tensor:
    """``torch.linalg.norm(weight + scaling * lora_weight, dim=1)``, without a graph."""
    scaled = tape.new(weight.elements, weight.dtype, "DoRA scaled B·A")
    total = tape.new(weight.elements, weight.dtype, "DoRA weight + B·A")
    del scaled
    norm = tape.new(layer.outputs, weight.dtype, "DoRA norm")
    del total
    return norm
