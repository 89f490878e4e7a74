"""Parameter tensors as a job holds them: in which format, trained or frozen, packed or not, with which adapter."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from loadmaster.arrays import Size, rounded
from loadmaster.dtypes import BITS, itemsize
from loadmaster.jobs.job import Job
from loadmaster.models.parameters import tensors
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace


@dataclass(frozen=True, slots=True)
class Held:
    """``count`` equal tensors of ``elements`` values in ``dtype``. ``packed``: quantised on loading."""

    name: str
    role: str
    elements: Size
    count: int
    dtype: str
    trained: bool
    packed: bool = False

    @property
    def size_bytes(self) -> Size:
        """Bytes of all copies as the allocator rounds them (scales of packed tensors are counted by weights)."""
        return rounded(self.elements * BITS[self.dtype] // 8) * self.count


def as_run(spec: ModelSpec, job: Job) -> ModelSpec:
    """The model as the job's library builds it: some never tie the output projection to the token table."""
    if spec.head is None or not spec.head.tied or job.facts.head_tied:
        return spec
    return replace(spec, head=replace(spec.head, tied=False))


def parameters(spec: ModelSpec, job: Job) -> list[Held]:
    """The base model's tensors under this job."""
    full = job.training and job.method == "full"
    head = job.facts.quantises_head
    found = []
    for tensor in tensors(spec):
        packed = (
            job.quantization is not None
            and tensor.linear
            and (tensor.layer is not None or (head and tensor.role == "head"))
        )
        dtype = job.quantization.dtype if packed and job.quantization else rest_dtype(job)
        found.append(
            Held(
                name=tensor.name,
                role=tensor.role,
                elements=prod(tensor.shape),
                count=tensor.count,
                dtype=dtype,
                trained=full and not packed,
                packed=packed,
            )
        )
    return found


def adapters(spec: ModelSpec, job: Job) -> list[Held]:
    """LoRA's A and B for every targeted linear layer."""
    if job.lora is None:
        return []
    found = []
    for tensor in tensors(spec):
        if (
            not tensor.linear
            or tensor.layer is None
            or not matches(job.lora.targets, tensor.name.removesuffix(".weight"))
        ):
            continue
        outputs, inputs = tensor.shape
        for side, width in (("lora_A", inputs), ("lora_B", outputs)):
            found.append(
                Held(
                    name=f"{tensor.name.removesuffix('.weight')}.{side}",
                    role="adapter",
                    elements=job.lora.rank * width,
                    count=tensor.count,
                    dtype=job.lora.dtype,
                    trained=True,
                )
            )
    return found


def matches(targets: tuple[str, ...], name: str) -> bool:
    """PEFT's rule: all-linear, or a module whose name is a target or ends in one (tuners_utils.check_target_module_exists)."""
    return any(t in ("all-linear", name) or name.endswith(f".{t}") for t in targets)


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


def gradient_bytes(held: Held) -> Size:
    """Bytes of one gradient of each copy: the parameter's own format (AccumulateGrad)."""
    return rounded(held.elements * itemsize(held.dtype)) * held.count
