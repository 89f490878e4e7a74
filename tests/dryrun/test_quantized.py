"""Stand-ins for bitsandbytes' layers against the library itself, on small real tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.optimtrace import RealTracer

from loadmaster.dryrun.programs import quantized
from loadmaster.dryrun.programs.building import quiet
from loadmaster.jobs.job import Quantization

with quiet():
    import bitsandbytes

INPUTS, OUTPUTS, TOKENS = 512, 1024, 256


def _real(how: Quantization) -> Any:
    layer = bitsandbytes.nn.Linear4bit(
        INPUTS, OUTPUTS, bias=False, compute_dtype=torch.bfloat16, compress_statistics=how.double,
        quant_type=how.dtype,
    )  # fmt: skip
    layer.weight.data = layer.weight.data.to(torch.bfloat16)
    return layer.to("cpu")


def _stand_in(how: Quantization) -> Any:
    layer = quantized._classes()["4bit"](INPUTS, OUTPUTS, None, how, torch.bfloat16)
    codes = torch.zeros(layer.weight.shape, dtype=torch.uint8)
    layer.weight = torch.nn.Parameter(codes, requires_grad=False)
    layer.packed.tensors = {
        name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in layer.packed.tensors.items()
    }
    return layer


def _tensors(layer: Any) -> list[Any]:
    state = layer.weight.quant_state
    found = [layer.weight, state.absmax, state.code]
    return found + ([state.state2.absmax, state.state2.code, state.offset] if state.nested else [])


def _passes(layer: Any, known: list[Any]) -> tuple[int, int]:
    """Bytes that a forward pass leaves, and what backward takes above them at most."""
    x = torch.randn(1, TOKENS, INPUTS).to(torch.bfloat16).requires_grad_(True)
    grad = torch.randn(1, TOKENS, OUTPUTS).to(torch.bfloat16)
    tracer = RealTracer([x, grad, *known])
    with tracer:
        out = layer(x)
        kept = tracer.peak = tracer.live
        out.backward(grad)
    return kept, tracer.peak - kept


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_packed_tensors_have_the_librarys_sizes(kind: str, double: bool) -> None:
    how = Quantization(dtype=kind, double=double)
    real = sorted(tensor.numel() * tensor.element_size() for tensor in _tensors(_real(how)))
    layer = _stand_in(how)
    ours = sorted(
        tensor.numel() * tensor.element_size() for tensor in (layer.weight, *layer.packed.tensors.values())
    )
    assert ours == real


@pytest.mark.parametrize("double", [True, False])
def test_a_pass_keeps_and_takes_what_the_librarys_does(double: bool) -> None:
    how = Quantization(double=double)
    real, ours = _real(how), _stand_in(how)
    kept, taken = _passes(real, _tensors(real))
    assert _passes(ours, [ours.weight, *ours.packed.tensors.values()]) == (kept, taken)
    # The output alone is kept; backward makes the input's gradient and the whole matrix in bfloat16.
    assert kept == TOKENS * OUTPUTS * 2
    assert taken >= TOKENS * INPUTS * 2 + INPUTS * OUTPUTS * 2


def test_int8_keeps_its_input() -> None:
    """MatMul8bitLt keeps ``A`` in ctx.tensors (bitsandbytes/autograd/_functions.py)."""
    codes = torch.zeros(OUTPUTS, INPUTS, dtype=torch.int8)
    scales = torch.ones(OUTPUTS)
    state = bitsandbytes.MatmulLtState()
    state.threshold, state.has_fp16_weights, state.CB, state.SCB = 6.0, False, codes, scales

    def kept(product: Any) -> int:
        base = torch.randn(TOKENS, INPUTS).to(torch.bfloat16).requires_grad_(True)
        tracer = RealTracer([base, codes, scales])
        with tracer:
            out = product(base * 1)
            held = tracer.live
        del out
        return held

    with quiet():
        real = kept(
            lambda x: bitsandbytes.autograd._functions.MatMul8bitLt.apply(x, codes, None, None, state)
        )
    ours = kept(lambda x: quantized.Matmul8bit.apply(x, codes, scales, None))
    assert ours == real == TOKENS * (INPUTS + OUTPUTS) * 2
