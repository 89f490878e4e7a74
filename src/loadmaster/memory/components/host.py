"""Host memory and disk: libraries, loading, the data loader, pinned buffers, saving.

Each function gives (phase, Part) pairs of the host's own phases: ``load``, ``run`` and ``save``.
"""

from __future__ import annotations

from loadmaster.arrays import Size, maximum, minimum, next_power_of_2
from loadmaster.jobs.job import Job
from loadmaster.jobs.quantizations import find
from loadmaster.memory.components import optimizer, weights
from loadmaster.memory.inventory import parameters, trained
from loadmaster.memory.parts import Part, commas
from loadmaster.models.parameters import tensors
from loadmaster.models.spec import ModelSpec
from loadmaster.units import GB, MIB

LIBRARIES_SOURCE = (
    "resident set after importing torch and transformers: 344 MiB (measured, CPU build 2.13); a CUDA context adds 117 MiB "
    "with lazy module loading and 1.7 GiB with eager loading (pytorch/pytorch#113326)"
)
LOAD_SOURCE = (
    "transformers from_pretrained without device_map: parameters are made in RAM in the asked format, then moved; with "
    "device_map, tensors go from the mapped file to the device one by one"
)
OFFLOAD_SOURCE = "torchao optim/cpu_offload.py CPUOffloadOptimizer: pinned copies of parameters and gradients, states on the host"
DATASET_SOURCE = (
    "pytorch/pytorch#13246: pages of a Python list are copied on access in forked workers; arrays stay shared"
)
LOADER_SOURCE = "torch.utils.data.DataLoader: each worker keeps prefetch_factor batches ready"
PINNED_SOURCE = "c10 CachingHostAllocator rounds pinned blocks up to a power of two"
SAVE_SOURCE = (
    "safetensors serialises one file at a time from host copies; transformers' max_shard_size is 50 GB"
)
WORKER_BYTES = 60 * MIB
"""What a forked loader worker does not share with its parent: Python objects touched after the fork. Assumed: between
the 25 MB of a bare interpreter with torch's pages shared and some 150 MB (spawn: the whole library set again)."""
SHARD_BYTES = 50 * GB


def libraries() -> Part:
    """Python with torch and transformers loaded, and a CUDA context's host side."""
    likely = 461 * MIB + 512 * MIB
    return Part(
        "libraries",
        likely,
        lambda: "Python, torch, transformers, CUDA libraries",
        LIBRARIES_SOURCE,
        "table",
        low_bytes=461 * MIB,
        high_bytes=2100 * MIB,
    )


def loading(spec: ModelSpec, job: Job) -> Part:
    """Weights on their way from disk to the device."""
    on_load = job.quantization is not None and find(job.quantization.dtype).ON_LOAD
    whole: Size = 0
    largest: Size = 0
    for held in parameters(spec, job):
        plain = held.packed and on_load
        size = held.elements * 2 if plain else held.size_bytes // held.count
        largest = maximum(largest, size)
        whole = whole + size * held.count
    one = largest
    if job.quantization is not None:
        # Loading packed weights always has a device_map: tensors pass one by one.
        return Part(
            "model loading",
            2 * one,
            lambda: f"largest tensor × 2 = {commas(2 * one)} B",
            LOAD_SOURCE,
            "modelled",
            low_bytes=one,
            high_bytes=whole,
        )
    return Part(
        "model loading",
        whole,
        lambda: f"all parameters in RAM = {commas(whole)} B",
        LOAD_SOURCE,
        "modelled",
        low_bytes=one,
        high_bytes=whole + one,
    )


def batch_bytes(job: Job) -> Size:
    """One micro-batch of ids, mask and labels as int64."""
    return 3 * 8 * job.micro_batch * job.seq_len


def running(spec: ModelSpec, job: Job) -> list[Part]:
    """What host memory holds while the job runs: the loader, and what is offloaded there."""
    moved = optimizer.paged(spec, job)
    if moved is None:
        return [*loader(job), *offloaded(spec, job)]
    size = moved.size_bytes
    words = "0 B while the card has room for them"
    swapped = Part("paged states", 0, lambda: words, moved.source, "modelled", low_bytes=0, high_bytes=size)
    return [*loader(job), *offloaded(spec, job), swapped]


def offloaded(spec: ModelSpec, job: Job) -> list[Part]:
    """Optimizer states, gradients and copies of the trained parameters that live in page-locked host memory."""
    found = []
    trained_bytes: Size = 0
    for held in trained(spec, job):
        trained_bytes = trained_bytes + held.size_bytes
    if "optimizer" in job.offload:
        own = optimizer.master(spec, job)
        states = optimizer.states(spec, job).size_bytes + (own.size_bytes if own else 0)
        size = states + 2 * trained_bytes
        words = (
            f"states {commas(states)} B + parameters and gradients on the host 2 × {commas(trained_bytes)} B"
        )
        found.append(Part("offloaded optimizer", size, lambda: words, OFFLOAD_SOURCE, "modelled"))
    elif "gradients" in job.offload:
        found.append(
            Part("offloaded gradients", trained_bytes, lambda: f"{commas(trained_bytes)} B", OFFLOAD_SOURCE)
        )
    if "activations" in job.offload:
        layers = sum(job.checkpoints(position) for position in range(len(spec.decoder.layout)))
        size = layers * job.micro_batch * job.seq_len * spec.decoder.hidden * 2
        words = f"checkpointed layers × tokens × width × 2 B = {commas(size)} B"
        found.append(Part("offloaded activations", size, lambda: words, "torch save_on_cpu hooks, pinned"))
    return found


def unpacked_experts(spec: ModelSpec, job: Job) -> list[str]:
    """A warning where packing on loading leaves most of a model unpacked."""
    if job.quantization is None or not find(job.quantization.dtype).ON_LOAD:
        return []
    whole: Size = 0
    plain: Size = 0
    for held in parameters(spec, job):
        whole = whole + held.elements * held.count
        plain = plain + (0 if held.packed else held.elements * held.count)
    if plain * 2 < whole:
        return []
    share = f"{100 * int(plain) // max(int(whole), 1)} %"
    derived = any(tensor.derived and tensor.role != "router" for tensor in tensors(spec))
    what = "layers of a class of their own" if derived else "stacked experts"
    rest = f"{share} of this model's values ({what}) stay unpacked"
    return [f"loading in {job.quantization.dtype} packs torch.nn.Linear alone: {rest}"]


def dataset(job: Job) -> Part:
    """The dataset in RAM: shared with forked workers, until counting references has touched every page of a list of objects."""
    size, workers = job.loader.dataset_bytes, job.loader.workers
    words = f"{size:,} B, shared with {workers} workers; lists of Python objects are copied into each in time"
    return Part("dataset", size, lambda: words, DATASET_SOURCE, high_bytes=size * (1 + workers))


def loader(job: Job) -> list[Part]:
    """Worker processes, the batches they hold ready, and pinned copies."""
    workers, batch = job.loader.workers, batch_bytes(job)
    found = [dataset(job)] if job.loader.dataset_bytes else []
    if workers:
        size = workers * WORKER_BYTES + workers * job.loader.prefetch * batch
        found.append(
            Part(
                "loader workers",
                size,
                lambda: (
                    f"{workers} workers × ({WORKER_BYTES:,} B + {job.loader.prefetch} batches × {commas(batch)} B)"
                ),
                LOADER_SOURCE,
                "assumed",
                low_bytes=workers * 25 * MIB,
                high_bytes=workers * 344 * MIB + workers * job.loader.prefetch * batch,
            )
        )
    if job.loader.pin_memory:
        pinned = (
            3 * next_power_of_2(8 * job.micro_batch * job.seq_len) * (job.loader.prefetch if workers else 1)
        )
        found.append(
            Part(
                "pinned buffers", pinned, lambda: f"{commas(pinned)} B page-locked", PINNED_SOURCE, "modelled"
            )
        )
    return found


def saving(spec: ModelSpec, job: Job) -> Part:
    """Host copies while a checkpoint is written: the largest file of it."""
    model = checkpoint_model_bytes(spec, job)
    size = minimum(model, SHARD_BYTES)
    return Part(
        "checkpoint writing",
        size,
        lambda: f"min(model {commas(model)} B, one file of 50 GB)",
        SAVE_SOURCE,
        "modelled",
        low_bytes=0,
        high_bytes=2 * size,
    )


def checkpoint_model_bytes(spec: ModelSpec, job: Job) -> Size:
    """The model's part of a checkpoint: adapters alone for LoRA, else all weights in their format."""
    if job.lora is not None:
        adapter = weights.adapter_weights(spec, job)
        return adapter.size_bytes if adapter else 0
    return weights.weights(spec, job).size_bytes


def disk(spec: ModelSpec, job: Job) -> list[Part]:
    """What one checkpoint takes on disk: model or adapter, and optimizer states for resuming."""
    if not job.training:
        return []
    model = checkpoint_model_bytes(spec, job)
    name = "adapter file" if job.lora is not None else "model files"
    parts = (optimizer.states(spec, job), optimizer.master(spec, job), optimizer.paged(spec, job))
    states: Size = 0
    for part in parts:
        states = states + (part.size_bytes if part else 0)
    return [
        Part(
            name,
            model,
            lambda: f"{commas(model)} B",
            "safetensors: values × bytes of their format, plus a header",
        ),
        Part("optimizer file", states, lambda: f"{commas(states)} B", "torch.save of optimizer.state_dict()"),
    ]
