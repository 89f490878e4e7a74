"""How a layer is run: the job's choices, sizes of this pass, and what a linear layer or a norm becomes under them."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.jobs.job import Job, Lora
from loadmaster.jobs.quantizations import exact, find, scratch_bytes
from loadmaster.memory import ops
from loadmaster.memory.adapted import matches
from loadmaster.memory.blocks import dora, int8
from loadmaster.memory.tape import Grads, Tape, Tensor
from loadmaster.models.spec import Linear, Norm


class Run:
    """One pass of ``job`` through some layers: ``batch`` sequences, ``queries`` new tokens each, seeing ``keys`` tokens.

    ``residual`` is the number format that runs between layers."""

    def __init__(
        self,
        job: Job,
        tape: Tape,
        *,
        queries: Size,
        keys: Size | None = None,
        source: Size | None = None,
        frozen: bool = False,
        capability: str | None = None,
    ) -> None:
        self.job, self.tape = job, tape
        self.before_ampere = capability is not None and capability[:1].isdigit() and float(capability) < 8.0
        """The card's CUDA compute capability is below 8.0; AMD's targets (gfx942) and unknown ones are not."""
        self.batch = job.micro_batch
        self.queries = queries
        self.keys = queries if keys is None else keys
        self.source = queries if source is None else source
        """Tokens that cross-attention reads."""
        self.rows = self.batch * queries
        self.passed: list[Tensor] = []
        """What this layer hands on to the next ones (T5's bias of positions)."""
        self.copies = 1
        """Equal modules that this pass stands for: experts in a list, each with an adapter of its own."""
        self.frozen = frozen or job.method != "full" or not job.training
        self.weights = job.precision.weights
        self.compute = job.compute_dtype
        self.facts = job.facts
        format_ = None if job.quantization is None else find(job.quantization.dtype)
        self.packed = format_ is not None and "layer" in format_.PACKS
        """Whether linear layers are packed."""
        self.exact = job.quantization is not None and exact(job.quantization) and not job.facts.packs_derived
        """Whether layers are packed whose class is torch.nn.Linear itself, none that are derived from it."""
        self.unpacks: tuple[str, ...] = () if format_ is None else format_.UNPACKS
        if job.quantization is not None and job.quantization.upcast_rest and job.training:
            self.residual = "float32"
        else:
            self.residual = self.weights

    def dropout(self, probability: float) -> float:
        """The model's dropout, which only runs in training: without gradients only where backward runs the layer again."""
        trains = self.job.training and (self.tape.grad_enabled or self.job.checkpointing != "none")
        return probability if trains else 0.0

    def linear(
        self,
        x: Tensor,
        layer: Linear,
        rows: Size | None = None,
        *,
        adapted: bool = True,
        quantised: bool = True,
    ) -> Tensor:
        """One torch.nn.Linear on ``rows`` rows: trained, frozen, with a LoRA adapter around it, or 4-bit under one."""
        rows = self.rows if rows is None else rows
        outputs = rows * layer.outputs
        lora = self.job.lora if adapted and self.job.training and targeted(self.job, layer) else None
        plain = layer.kept or (layer.derived and self.exact)
        if self.packed and quantised and not plain:
            if lora is None:
                return self._quantised(x, layer, outputs)
            return self._adapter_4bit(x, layer, rows, outputs)
        dtype = self.weights
        if (layer.kept and dtype == "float16") or (plain and self.residual == "float32"):
            dtype = "float32"
            x = ops.cast(self.tape, x, dtype, f"{layer.name} input")
        weight = self.tape.parameter(
            layer.name, layer.inputs * layer.outputs, dtype, trainable=not self.frozen
        )
        bias = (
            self.tape.parameter(f"{layer.name}.bias", layer.outputs, self.weights, trainable=not self.frozen)
            if layer.bias
            else None
        )
        y = ops.linear(self.tape, x, weight, outputs, layer.name, bias=bias)
        return y if lora is None else self._adapter(x, y, layer, rows, outputs)

    def norm(self, x: Tensor, norm: Norm, name: str, rows: Size | None = None) -> Tensor:
        """A normalisation of ``rows`` rows."""
        rows = self.rows if rows is None else rows
        # 4-bit loading for training leaves norms in float32 (prepare_model_for_kbit_training).
        dtype = (
            "float32"
            if self.job.quantization is not None and self.job.quantization.upcast_rest and self.job.training
            else self.weights
        )
        weight = (
            self.tape.parameter(f"{name}.weight", norm.size, dtype, trainable=not self.frozen)
            if norm.weight
            else None
        )
        if norm.kind == "rms" and not norm.native and not self.job.compile:
            return ops.rms_norm(
                self.tape,
                x,
                weight,
                rows,
                name,
                plus_one=norm.plus_one,
                wide_scale=norm.wide_scale,
                narrow=norm.narrow,
            )
        bias = (
            self.tape.parameter(f"{name}.bias", norm.size, dtype, trainable=not self.frozen)
            if norm.bias
            else None
        )
        return ops.native_norm(self.tape, x, weight, rows, name, kind=norm.kind, bias=bias)

    def fused_qkv(self, x: Tensor, parts: tuple[Linear, ...]) -> Tensor:
        """LitGPT's one matrix for query, key and value, with its LoRA on some of them (litgpt/lora.py LoRAQKVLinear):
        one A for all, a grouped B, zero-padded to the whole width by index_copy, which keeps its source."""
        width = sum(part.outputs for part in parts)
        whole = Linear(name="attn", inputs=parts[0].inputs, outputs=width, bias=any(p.bias for p in parts))
        result = self.linear(x, whole, adapted=False)
        lora = self.job.lora
        enabled = [part for part in parts if targeted(self.job, part)] if lora is not None else []
        if lora is None or not enabled:
            return result
        rank = lora.rank * len(enabled)
        a = self.tape.parameter("attn.lora_A", rank * whole.inputs, lora.dtype, trainable=True)
        b = self.tape.parameter(
            "attn.lora_B", lora.rank * sum(p.outputs for p in enabled), lora.dtype, trainable=True
        )
        low = ops.linear(
            self.tape, ops.dropout(self.tape, x, lora.dropout, "LoRA dropout"), a, self.rows * rank, "LoRA A"
        )
        source = ops.linear(self.tape, low, b, self.rows * sum(p.outputs for p in enabled), "LoRA B")
        padded = ops.placed(self.tape, source, self.rows * width, "LoRA padded")
        del source, low
        return ops.add(self.tape, result, ops.scale(self.tape, padded, "LoRA scaled"), "attn output")

    def _adapter(self, x: Tensor, result: Tensor, layer: Linear, rows: Size, outputs: Size) -> Tensor:
        # peft/tuners/lora/layer.py Linear.forward: the input is cast to the adapter's format, once a layer.
        lora = self.job.lora
        assert lora is not None
        dtype = result.dtype
        x = ops.cast(self.tape, x, lora.dtype, "LoRA input")
        if lora.dora:
            result = self._dora(x, result, layer, rows)
            return ops.cast(self.tape, result, dtype, f"{layer.name} output")
        update = ops.scale(self.tape, self._low_rank(x, layer, rows, outputs), "LoRA scaled")
        result = ops.add(self.tape, result, update, f"{layer.name} with LoRA")
        del update
        return ops.cast(self.tape, result, dtype, f"{layer.name} output")

    def _adapter_4bit(self, x: Tensor, layer: Linear, rows: Size, outputs: Size) -> Tensor:
        # peft/tuners/lora/bnb.py: the update is cast before the sum; Linear4bit.forward makes a defensive clone.
        lora, quantization = self.job.lora, self.job.quantization
        assert lora is not None
        result = self._quantised(x, layer, outputs)
        if quantization is None or quantization.dtype != "int8":
            result = ops.copy(self.tape, result, f"{layer.name} clone")
        dtype = result.dtype
        if self.tape.autocast is None:
            x = ops.cast(self.tape, x, lora.dtype, "LoRA input")
        if lora.dora:
            result = self._dora(x, result, layer, rows)
            return (
                result if self.tape.autocast else ops.cast(self.tape, result, dtype, f"{layer.name} output")
            )
        update = ops.scale(self.tape, self._low_rank(x, layer, rows, outputs), "LoRA scaled")
        if self.tape.autocast is None:
            update = ops.cast(self.tape, update, dtype, "LoRA update")
        return ops.add(self.tape, result, update, f"{layer.name} output")

    def _low_rank(self, x: Tensor, layer: Linear, rows: Size, outputs: Size) -> Tensor:
        lora = self.job.lora
        assert lora is not None
        a, b = self._adapter_weights(layer, lora)
        low = ops.linear(
            self.tape, ops.dropout(self.tape, x, lora.dropout, "LoRA dropout"), a, rows * lora.rank, "LoRA A"
        )
        return ops.linear(self.tape, low, b, outputs, "LoRA B")

    def _adapter_weights(self, layer: Linear, lora: Lora) -> tuple[Tensor, Tensor]:
        sides = (("lora_A", layer.inputs), ("lora_B", layer.outputs))
        rank = lora.rank * self.copies
        a, b = (
            self.tape.parameter(f"{layer.name}.{name}", rank * side, lora.dtype, trainable=True)
            for name, side in sides
        )
        return a, b

    def _dora(self, x: Tensor, result: Tensor, layer: Linear, rows: Size) -> Tensor:
        lora, quantization = self.job.lora, self.job.quantization
        assert lora is not None
        values = layer.inputs * layer.outputs

        def base() -> Tensor:
            if quantization is None:
                return self.tape.constant(values, self.weights)
            return _unpacked(self.tape, values, quantization.compute, None)

        return dora.adapted(self.tape, lora, layer, x, result, self._adapter_weights(layer, lora), base, rows)

    def _quantised(self, x: Tensor, layer: Linear, outputs: Size) -> Tensor:
        # bitsandbytes MatMul4Bit: the weight is unpacked to the compute format in forward and again in backward;
        # nothing but the packed weight is saved. Linear4bit.forward casts its input and its result. Other kernels read
        # packed weights in forward, with scratch of their own.
        quantization = self.job.quantization
        assert quantization is not None
        if quantization.dtype == "int8":
            rows = outputs // layer.outputs
            scratch = scratch_bytes(layer.inputs, layer.outputs, rows, quantization)
            return int8.product(self.tape, x, layer.inputs * layer.outputs, outputs, scratch, layer.name)
        before, compute = x.dtype, self.tape.autocast or quantization.compute
        x = ops.cast(self.tape, x, compute, f"{layer.name} input")
        weight, stored = layer.inputs * layer.outputs, self.facts.unpacks_as
        unpacked = _unpacked(self.tape, weight, compute, stored) if "forward" in self.unpacks else None
        scratch = scratch_bytes(layer.inputs, layer.outputs, outputs // layer.outputs, quantization)
        own = None if isinstance(scratch, int) and not scratch else self._scratch(scratch)
        y = self.tape.new(outputs, compute, f"{layer.name} output")
        del unpacked, own
        elements = x.elements

        def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
            held = _unpacked(t, weight, compute, stored)
            grad = t.new(elements, compute, f"{layer.name} gradient")
            del held
            return [grad]

        saved = [x] if self.facts.saves_quantised_input else []
        y = self.tape.record("linear4bit", [x], y, saved, backward)
        return y if self.tape.autocast else ops.cast(self.tape, y, before, f"{layer.name} output")

    def _scratch(self, size: Size) -> Tensor:
        return self.tape.new(size, "uint8", "kernel of packed weights", tag="dequantised weights")


def _unpacked(tape: Tape, weight: Size, compute: str, stored: str | None) -> Tensor:
    """A 4-bit weight unpacked to the format it was packed from, then cast to the compute format (MatMul4Bit.forward:
    ``dequantize_4bit(B, quant_state).to(A.dtype)``)."""
    first = tape.new(weight, stored or compute, "dequantised weight", tag="dequantised weights")
    if stored is None or stored == compute:
        return first
    return tape.new(weight, compute, "dequantised weight cast", tag="dequantised weights")


def targeted(job: Job, layer: Linear) -> bool:
    """Whether LoRA wraps this layer."""
    return job.lora is not None and matches(job.lora.targets, layer.name)
