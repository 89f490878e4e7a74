"""LoRA on parameters that are no module's weight: PEFT adds the adapter to a copy of the parameter before the module runs.

Mirrors peft/tuners/lora/layer.py ParamWrapper: while the module runs, the parameter is a parametrization whose result is made
when it is first read and held until the module is done (torch.nn.utils.parametrize.cached). The copy needs a gradient, so that
products keep it, and their backward makes a gradient of its size.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.arrays import Size
from loadmaster.memory import ops
from loadmaster.memory.adapted import ranks
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.inventory import rest_dtype
from loadmaster.memory.tape import Grads, Tape, Tensor
from loadmaster.models.spec import Experts, Linear


class Merged:
    """The stacked weights of one layer's experts with their adapters, as far as they have any."""

    def __init__(self, run: Run, spec: Experts) -> None:
        self._run, self._dtype = run, rest_dtype(run.job)
        self._factors: dict[str, tuple[Tensor, Tensor, Size]] = {}
        self._made: dict[str, Tensor] = {}
        if spec.stacked:
            # The last parameter's wrapper is the outermost, so that its factors come first.
            for linear in (spec.expert.output, *reversed(spec.expert.projections)):
                self._wrap(linear, spec.count)

    def _wrap(self, linear: Linear, count: int) -> None:
        """get_delta_factors: A and B in the weight's format; a parametrization is run once when it is registered."""
        lora = self._run.job.lora if self._run.job.training else None
        times = ranks(lora, linear.name) if lora is not None else 0
        if lora is None or not times:
            return
        tape, rank = self._run.tape, lora.rank * times * count
        left, right = (
            ops.cast(
                tape,
                tape.parameter(f"{linear.name}.{side}", rank * each, lora.dtype, trainable=True),
                self._dtype,
            )
            for side, each in (("lora_B", linear.outputs), ("lora_A", linear.inputs))
        )
        size = count * linear.inputs * linear.outputs
        tape.scratch(size, self._dtype, "merged expert weights")
        self._factors[linear.name] = (left, right, size)

    def weight(self, name: str) -> Tensor | None:
        """The merged weight of this name, made when it is first asked for; None: it has no adapter."""
        if name not in self._factors:
            return None
        if name not in self._made:
            self._made[name] = _baddbmm(self._run.tape, *self._factors[name], self._dtype)
        return self._made[name]


def _baddbmm(tape: Tape, left: Tensor, right: Tensor, size: Size, dtype: str) -> Tensor:
    """_LoraFactorsProxy: ``torch.baddbmm(W, B, A, alpha=scaling)``; each factor's gradient is made, then scaled."""
    y = tape.new(size, dtype, "merged expert weights")
    sizes = (left.elements, right.elements)

    def backward(t: Tape, g: Grads, s: list[Tensor]) -> Sequence[Tensor | None]:
        found = []
        for each in sizes:
            plain = t.new(each, dtype, "adapter gradient")
            found.append(t.new(each, dtype, "adapter gradient scaled"))
            del plain
        return found

    return tape.record("baddbmm", [left, right], y, [left, right], backward)


def router_logits(run: Run, x: Tensor, router: Linear, *, wide: bool = False) -> Tensor:
    """A router's product with its weight; ``wide``: in float32, from copies of both."""
    tape, weight = run.tape, _router_weight(run, router)
    if weight is None and not wide:
        return run.linear(x, router, adapted=router.derived, quantised=False)
    if weight is None:
        size = router.inputs * router.outputs
        weight = tape.parameter(router.name, size, rest_dtype(run.job), trainable=not run.frozen)
    if wide:
        x = ops.cast(tape, x, "float32", f"{router.name} input")
        weight = ops.cast(tape, weight, "float32", f"{router.name} weight")
    return ops.linear(tape, x, weight, run.rows * router.outputs, router.name)


def _router_weight(run: Run, router: Linear) -> Tensor | None:
    """The weight of a router, a bare parameter, with an adapter's whole update added to a copy (_LoraParameterProxy)."""
    lora = run.job.lora if run.job.training else None
    times = ranks(lora, f"{router.name}.weight") if lora is not None else 0
    if lora is None or not times:
        return None
    tape, size, dtype = run.tape, router.inputs * router.outputs, rest_dtype(run.job)
    a, b = (
        tape.parameter(f"{router.name}.{side}", lora.rank * times * each, lora.dtype, trainable=True)
        for side, each in (("lora_A", router.inputs), ("lora_B", router.outputs))
    )
    update = ops.scale(tape, ops.matmul(tape, b, a, size, "router update"), "router update scaled")
    update = ops.cast(tape, update, dtype, "router update")
    return ops.add(tape, tape.constant(size, dtype), update, "merged router weight")
