"""Stand-ins for bitsandbytes' layers: the same packed tensors, and the same tensors made on the way, as operators of torch's own.

bitsandbytes' parameter classes can't hold fake tensors, and what its compiled kernels and wrappers allocate is hidden from
torch. Follows bitsandbytes 0.50: nn/modules.py (Linear4bit, Linear8bitLt), autograd/_functions.py (MatMul4Bit, MatMul8bitLt),
backends/cuda/ops.py (gemm_4bit, int8_vectorwise_quant, int8_mm_dequant) and functional.py (dequantize_4bit).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from loadmaster.dryrun.programs.building import quiet
from loadmaster.errors import BadValueError, UsageError
from loadmaster.jobs.job import Job, Quantization

FORMATS = ("nf4", "fp4", "int8")
OUTLIER_THRESHOLD = 6.0
"""transformers BitsAndBytesConfig llm_int8_threshold."""
FUSED_ROWS = 4
"""backends/cuda/ops.py _GEMM_4BIT_CUSTOM_FLOOR_M: up to so many rows the fused kernel runs on every card."""
STATE_BLOCK = 256
"""functional.quantize_4bit: absmax values to a block of the second quantisation."""


class Packed4bit:
    """The tensors of functional.QuantState for a matrix of ``outputs`` × ``inputs``; on the meta device until ``onto``."""

    def __init__(self, outputs: int, inputs: int, how: Quantization, dtype: torch.dtype) -> None:
        self.shape, self.dtype, self.block = (outputs, inputs), dtype, how.block
        scales = -(-outputs * inputs // how.block)
        new: dict[str, tuple[int, torch.dtype]] = {"code": (16, torch.float32)}
        if how.double:
            new |= {
                "absmax": (scales, torch.uint8),
                "absmax2": (-(-scales // STATE_BLOCK), torch.float32),
                "code2": (256, torch.float32),
                "offset": (1, torch.float32),
            }
        else:
            new["absmax"] = (scales, torch.float32)
        self.double = how.double
        self.tensors = {
            name: torch.empty(count, dtype=kind, device="meta") for name, (count, kind) in new.items()
        }

    def onto(self, session: Any, module: str) -> None:
        """Every tensor becomes one of the device."""
        for name, tensor in self.tensors.items():
            self.tensors[name] = session.device_tensor(tensor, "parameters")
            session.tracker.tag(self.tensors[name], "parameters", module)

    def absmax(self, *, in_place: bool) -> Any:
        """The scales in float32: dequantize_blockwise and the offset, which is added in place by dequantize_4bit and not so
        by gemm_4bit."""
        scales = self.tensors["absmax"]
        if not self.double:
            return scales
        wide = torch.empty_like(scales, dtype=torch.float32)
        return wide.add_(self.tensors["offset"]) if in_place else wide + self.tensors["offset"]

    def unpacked(self, dtype: torch.dtype, *, in_place: bool) -> Any:
        """The whole matrix."""
        scales = self.absmax(in_place=in_place)
        out = torch.empty(self.shape, dtype=dtype, device=scales.device)
        del scales
        return out


def _gemm(x: Any, state: Packed4bit, bias: Any) -> Any:
    """backends/cuda/ops.py gemm_4bit: a fused kernel for few rows, else the matrix is unpacked."""
    rows = x.numel() // x.shape[-1]
    if rows <= FUSED_ROWS and x.shape[-1] % state.block == 0:
        x = x.contiguous()
        return x.new_empty((*x.shape[:-1], state.shape[0]))
    scales = state.absmax(in_place=False)
    unpacked = torch.empty(state.shape, dtype=x.dtype, device=x.device)
    out = functional.linear(x, unpacked, bias)
    del scales, unpacked
    return out


class Matmul4bit(torch.autograd.Function):
    """MatMul4Bit: only the packed weight is kept; backward unpacks it again."""

    @staticmethod
    def forward(ctx: Any, x: Any, state: Any, bias: Any) -> Any:
        """The product; the state goes along as it is."""
        ctx.state, ctx.bias_dtype = state, None if bias is None else bias.dtype
        return _gemm(x, state, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """grad_output times the unpacked matrix."""
        (grad,) = grads
        grad_bias = grad.sum(0, dtype=ctx.bias_dtype) if ctx.needs_input_grad[2] else None
        state = ctx.state
        if not ctx.needs_input_grad[0]:
            return None, None, grad_bias
        return torch.matmul(grad, state.unpacked(state.dtype, in_place=True).to(grad.dtype)), None, grad_bias


class Matmul8bit(torch.autograd.Function):
    """MatMul8bitLt without outlier columns: the input is kept, though the weight is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Any, codes: Any, scales: Any, bias: Any) -> Any:
        """int8_vectorwise_quant, int8_mixed_scaled_mm."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        narrow, rows = _vectorwise_quant(x.to(torch.float16))
        product = torch.empty((x.shape[0], codes.shape[0]), dtype=torch.int32, device=x.device)
        out = torch.empty_like(product, dtype=torch.float16)
        if bias is not None and bias.dtype != torch.float16:
            out.add_(bias)
        out = out.to(x.dtype)
        del product, narrow, rows
        ctx.state, ctx.shape, ctx.dtype = (codes, scales), shape, x.dtype
        ctx.kept = x if ctx.needs_input_grad[0] else None
        return out.reshape(*shape[:-1], codes.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The codes in the input's format, scaled in place, times the gradient."""
        (grad,) = grads
        codes, scales = ctx.state
        grad = grad.reshape(-1, grad.shape[-1]).contiguous()
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        wide = codes.to(ctx.dtype, copy=True).mul_(scales.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(grad.to(ctx.dtype), wide).view(ctx.shape), None, None, None


def _vectorwise_quant(x: Any) -> tuple[Any, Any]:
    """int8_vectorwise_quant with a threshold: magnitudes and a mask look for outliers, of which none are taken."""
    rows = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    outliers = x.abs() >= OUTLIER_THRESHOLD
    del outliers
    return out, rows


def quantize(model: Any, job: Job) -> list[str]:
    """Replace a model's linear layers, on the meta device, as transformers' loader does it: all but the head and what is tied
    (get_keys_to_not_convert); experts in 3-D tensors stay as they are. Returns the paths of replaced layers."""
    how = job.quantization
    assert how is not None
    if how.dtype not in FORMATS:
        raise BadValueError(
            "quantization", how.dtype, f"{', '.join(FORMATS)} in a dry run: of other formats it has no layers"
        )
    kinds = _classes()
    with quiet():
        from transformers.pytorch_utils import Conv1D
        from transformers.quantizers.base import get_keys_to_not_convert

        # quantizers/base.py get_modules_to_not_convert: and what the class keeps in float32 (T5's wo).
        skipped = [*get_keys_to_not_convert(model), *(getattr(model, "_keep_in_fp32_modules", None) or ())]
    names = [
        name
        for name, module in model.named_modules()
        if type(module) in (torch.nn.Linear, Conv1D) and not _skip(name, skipped)
    ]
    for name in names:
        old = model.get_submodule(name)
        inputs, outputs = old.weight.shape if isinstance(old, Conv1D) else reversed(old.weight.shape)
        make = kinds["int8" if how.dtype == "int8" else "4bit"]
        model.set_submodule(name, make(inputs, outputs, old.bias, how, old.weight.dtype))
    model.is_loaded_in_8bit, model.is_loaded_in_4bit = how.dtype == "int8", how.dtype != "int8"
    model.is_quantized = True
    return names


def _skip(name: str, keys: list[str]) -> bool:
    return any(name == key or name.startswith(f"{key}.") or name.endswith(key) for key in keys)


def onto(model: Any, session: Any) -> None:
    """Scales and codes of packed layers go to the device; each matrix is there in its stored format first."""
    for name, module in model.named_modules():
        state = getattr(module, "packed", None)
        if isinstance(state, Packed4bit):
            size = state.shape[0] * state.shape[1] * state.dtype.itemsize
            session.tracker.scratch([size], "weight before packing")
            state.onto(session, name)
        elif isinstance(state, dict):
            size = module.in_features * module.out_features * 2
            session.tracker.scratch([size], "weight before packing")
            state["SCB"] = session.device_tensor(state["SCB"], "parameters")


def prepare(model: Any, job: Job) -> Any:
    """PEFT's prepare_model_for_kbit_training: what isn't packed becomes float32, nothing of the base is trained."""
    with quiet():
        import peft

        prepare_model: Any = peft.prepare_model_for_kbit_training
        return prepare_model(model, use_gradient_checkpointing=False)


def _classes() -> dict[str, Any]:
    """The stand-in classes, made when bitsandbytes is there: PEFT knows its layers by class."""
    if _made:
        return _made
    try:
        with quiet():
            import bitsandbytes.nn as bnb_nn
            from bitsandbytes.autograd._functions import MatmulLtState
    except ImportError:
        raise UsageError(
            "quantized layers in a dry run need bitsandbytes, by whose classes PEFT knows them",
            hint="pip install bitsandbytes",
        ) from None

    _made.update({"4bit": _class_4bit(bnb_nn), "int8": _class_8bit(bnb_nn, MatmulLtState)})
    return _made


def _class_4bit(modules: Any) -> Any:
    class Linear4bit(modules.Linear4bit):  # type: ignore[misc]
        """Linear4bit with a plain packed parameter."""

        def __init__(
            self, inputs: int, outputs: int, bias: Any, how: Quantization, dtype: torch.dtype
        ) -> None:
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features = inputs, outputs
            codes = torch.empty(-(-inputs * outputs // 2), 1, dtype=torch.uint8, device="meta")
            weight: Any = torch.nn.Parameter(codes, requires_grad=False)
            weight.compress_statistics, weight.quant_type = how.double, how.dtype
            self.weight = weight
            self.bias = bias
            self.compute_dtype = getattr(torch, how.compute)
            self.packed = Packed4bit(outputs, inputs, how, dtype)

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            torch.nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)

        def forward(self, x: Any) -> Any:
            """As Linear4bit.forward."""
            kind = x.dtype
            x = x.to(self.compute_dtype)
            bias = None if self.bias is None else self.bias.to(self.compute_dtype)
            if torch.is_grad_enabled() and x.requires_grad:
                return Matmul4bit.apply(x, self.packed, bias).to(kind)  # type: ignore[no-untyped-call]
            return _gemm(x, self.packed, bias).to(kind)

    return Linear4bit


def _class_8bit(modules: Any, state_of: Any) -> Any:
    class Linear8bit(modules.Linear8bitLt):  # type: ignore[misc]
        """Linear8bitLt with a plain int8 parameter."""

        def __init__(
            self, inputs: int, outputs: int, bias: Any, how: Quantization, dtype: torch.dtype
        ) -> None:
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features, self.index = inputs, outputs, None
            codes = torch.empty(outputs, inputs, dtype=torch.int8, device="meta")
            self.weight = torch.nn.Parameter(codes, requires_grad=False)
            self.bias = bias
            self.state = state_of()
            self.state.threshold, self.state.has_fp16_weights = OUTLIER_THRESHOLD, False
            self.packed = {"SCB": torch.empty(outputs, dtype=torch.float32, device="meta")}

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            torch.nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)

        def forward(self, x: Any) -> Any:
            """As Linear8bitLt.forward; the bias is cast once, in place."""
            if self.bias is not None and self.bias.dtype != x.dtype:
                self.bias.data = self.bias.data.to(x.dtype)
            return Matmul8bit.apply(  # type: ignore[no-untyped-call]
                x, self.weight, self.packed["SCB"], self.bias
            )

    return Linear8bit


_made: dict[str, Any] = {}
