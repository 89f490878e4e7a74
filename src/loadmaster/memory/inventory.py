"""Parameter tensors as a job holds them: in which format, trained or frozen, packed or not, with which adapter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import prod

from loadmaster.arrays import Size, rounded
from loadmaster.dtypes import BITS, itemsize
from loadmaster.jobs import quantizations
from loadmaster.jobs.job import Job
from loadmaster.jobs.quantizations import Matrix, Place
from loadmaster.memory import adapted
from loadmaster.memory.adapted import as_adapted
from loadmaster.memory.frozen import frozen_copies
from loadmaster.models.parameters import Tensor, tensors
from loadmaster.models.spec import Experts, Mlp, ModelSpec, Tower
from loadmaster.records import replace


@dataclass(frozen=True, slots=True)
class Held:
    """``count`` equal tensors of ``elements`` values in ``dtype``. ``packed``: quantised on loading; ``hidden``: the matrix
    of a linear layer inside the network."""

    name: str
    role: str
    elements: Size
    count: int
    dtype: str
    trained: bool
    packed: bool = False
    packed_bytes: int = 0
    """Bytes of all copies of a packed matrix with their scales."""
    sides: tuple[Size, ...] = ()
    hidden: bool = False

    @property
    def size_bytes(self) -> Size:
        """Bytes of all copies as the allocator rounds them, scales of packed ones included."""
        if self.packed:
            return self.packed_bytes
        return rounded(self.elements * BITS[self.dtype] // 8) * self.count


def as_run(spec: ModelSpec, job: Job) -> ModelSpec:
    """The model as the job's library builds it: some never tie the output projection to the token table, some hold experts
    as a list of modules."""
    if not job.facts.stacked_experts:
        spec = replace(spec, towers=tuple(_listed(tower) for tower in spec.towers))
    if spec.head is not None and spec.head.always_tied and job.facts.ties_always:
        spec = replace(spec, head=replace(spec.head, tied=True))
    if spec.head is None or not spec.head.tied:
        return spec
    fp8 = job.quantization is not None and job.quantization.dtype == "fp8"
    if job.facts.head_tied and not (fp8 and job.facts.fp8_unties_head):
        return spec
    return replace(spec, head=replace(spec.head, tied=False))


def _listed(tower: Tower) -> Tower:
    """The tower with its experts as modules; those stored inputs first were 3-D tensors from the start (gpt-oss, Llama 4)."""
    blocks = []
    for block in tower.blocks:
        part = block.feedforward
        if isinstance(part, Experts) and part.stacked and not part.inputs_first:
            part = replace(part, stacked=False, expert=_two_step(part.expert))
            block = replace(block, feedforward=part)
        blocks.append(block)
    return replace(tower, blocks=tuple(blocks))


def _two_step(expert: Mlp) -> Mlp:
    """An expert whose fused gate and up projection is two linear layers again."""
    (fused,) = expert.projections if len(expert.projections) == 1 else (None,)
    if fused is None or not expert.gated:
        return expert
    stem = fused.name.rpartition(".")[0]
    parts = tuple(
        replace(fused, name=f"{stem}.{{}}.{name}", outputs=fused.outputs // 2)
        for name in ("gate_proj", "up_proj")
    )
    down = replace(expert.output, name=f"{stem}.{{}}.{expert.output.name.rpartition('.')[2]}")
    return replace(expert, projections=parts, output=down)


def parameters(spec: ModelSpec, job: Job) -> list[Held]:
    """The base model's tensors under this job."""
    full = job.training and job.method == "full"
    denoisers = _denoisers(spec)
    head = job.facts.quantises_head
    found = []
    tied = spec.head is None or spec.head.tied
    for tensor in tensors(spec):
        if not tensor.count:
            continue  # a kind of layer that this depth has none of
        if tensor.role == "embedding" and job.facts.host_embedding and not tied:
            continue
        matrix = matrix_of(spec, tensor) if job.quantization is not None else None
        size = 0
        dtype = rest_dtype(job)
        packed = False
        if matrix is not None and job.quantization is not None:
            packed = quantizations.packs(matrix, job.quantization, head=head, derived=job.facts.packs_derived)
            if packed:
                dtype = quantizations.spelled(job.quantization)
                size = quantizations.packed_bytes(matrix, job.quantization)
        found += _split(
            Held(
                name=tensor.name,
                role=tensor.role,
                elements=prod(tensor.shape),
                count=tensor.count,
                dtype=dtype,
                trained=full and not packed and (not denoisers or tensor.tower in denoisers),
                packed=packed,
                packed_bytes=size,
                sides=tensor.shape,
                hidden=tensor.linear and tensor.layer is not None,
            ),
            frozen_copies(spec, job, tensor) if job.frozen else 0,
        )
    return found


def _split(held: Held, frozen: int) -> list[Held]:
    """A kind of tensor whose first ``frozen`` copies aren't trained, in up to two parts."""
    if not (held.trained and frozen):
        return [held]
    rest = held.count - frozen
    parts = [dataclasses.replace(held, count=frozen, trained=False)]
    return [*parts, dataclasses.replace(held, count=rest)] if rest else parts


def _denoisers(spec: ModelSpec) -> set[str]:
    """Towers of an image pipeline that are trained; its text encoders and autoencoder stay frozen. Empty: no pipeline."""
    return {t.name for t in spec.towers if t.modality == "image_latent"} if spec.head is None else set()


def matrix_of(spec: ModelSpec, tensor: Tensor) -> Matrix | None:
    """A parameter tensor as a format of packed weights sees it; None: no such format packs it."""
    place = _place(tensor)
    if place is None:
        return None
    stack = tensor.shape[0] if len(tensor.shape) == 3 else 1
    layers = next((len(t.layout) for t in spec.towers if t.name == tensor.tower), 1)
    tied = place == "embedding" and spec.head is not None and spec.head.tied
    return Matrix(
        name=tensor.name, place=place, outputs=tensor.shape[-2], inputs=tensor.shape[-1], stack=stack,
        count=tensor.count, layers=max(layers, 1), tied=tied, derived=tensor.derived,
    )  # fmt: skip


def _place(tensor: Tensor) -> Place | None:
    if tensor.role == "embedding" and len(tensor.shape) == 2:
        return "embedding"
    if tensor.role == "experts" and len(tensor.shape) == 3:
        return "experts"
    if not tensor.linear or tensor.kept:
        return None
    if tensor.layer is None:
        return "head" if tensor.role == "head" else None
    return {"router": "router", "vision": "tower", "audio": "tower"}.get(tensor.role, "layer")  # type: ignore[return-value]


def adapters(spec: ModelSpec, job: Job) -> list[Held]:
    """LoRA's A and B for every layer and parameter that it reaches, and DoRA's magnitudes."""
    lora = as_adapted(spec, job).lora
    if lora is None:
        return []
    denoisers = _denoisers(spec)
    found = []
    for tensor in tensors(spec):
        if not tensor.count or not adapted.reaches(lora, tensor):
            continue
        if denoisers and tensor.tower not in denoisers:
            continue
        for side, sides in adapted.sides(lora, tensor):
            found.append(
                Held(
                    name=f"{tensor.name.removesuffix('.weight')}.{side}",
                    role="adapter",
                    elements=prod(sides),
                    count=tensor.count,
                    dtype=lora.dtype,
                    trained=True,
                    sides=sides,
                    hidden=len(sides) == 2,
                )
            )
    return found


def rest_dtype(job: Job) -> str:
    """The format of what is not packed: float32 where prepare_model_for_kbit_training upcasts, else the weights' own."""
    if job.quantization is not None and job.quantization.upcast_rest and job.training:
        return "float32"
    return job.precision.weights


def trained(spec: ModelSpec, job: Job) -> list[Held]:
    """Every tensor that gets a gradient."""
    if not job.training:
        return []
    return (
        adapters(spec, job)
        if job.lora is not None
        else [held for held in parameters(spec, job) if held.trained]
    )


def gradient_bytes(held: Held, dtype: str | None = None) -> Size:
    """Bytes of one gradient of each copy: the parameter's own format (AccumulateGrad), or that of a buffer of ``dtype``."""
    return rounded(held.elements * itemsize(dtype or held.dtype)) * held.count
