"""Which towers of a model a job runs, on how many tokens, and what each of their layers costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from loadmaster.arrays import Size, rounded
from loadmaster.dtypes import itemsize
from loadmaster.jobs.job import Job
from loadmaster.memory import passes
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.cost import Cost
from loadmaster.memory.frozen import Place, place
from loadmaster.memory.parts import Part, counted
from loadmaster.memory.tape import Tape
from loadmaster.models.spec import Attention, Block, ModelSpec, Tower

TEXT_LIKE = ("text", "vision", "audio")
"""Modalities whose towers are stacks of token blocks; image planes (UNet, VAE) are not run here yet."""


@dataclass(slots=True, eq=False)
class Segment:
    """Consecutive equal layers. ``held``: what lives while they run forward and no longer (the embedding output)."""

    cost: Cost
    count: int
    held: Part | None = None


@dataclass(slots=True, eq=False)
class Stack:
    """A tower at work: its tokens a sequence, the tokens its cross-attention reads, its layers' costs in order."""

    tower: Tower
    tokens: Size
    layers: list[Cost]
    embedding: Part
    tail: Cost | None = None
    """The norms behind its last layer, where another tower follows."""
    stem: Cost | None = None
    """What stands before its layers, where it keeps something for backward."""

    @property
    def segments(self) -> list[Segment]:
        """Runs of equal layers. Many short runs (alternating layers) are taken as one run of each kind: what they keep
        is the same, and the order within a pair moves a peak by at most one layer."""
        held = None if self.layers and self.layers[0].keeps_input else self.embedding
        runs = [
            Segment(cost, len(list(group)), held) for cost, group in groupby(self.layers, key=lambda c: c)
        ]
        if len(runs) > 8:
            merged: dict[int, Segment] = {}
            for run in runs:
                merged.setdefault(id(run.cost), Segment(run.cost, 0, held)).count += run.count
            runs = list(merged.values())
        first = [Segment(self.stem, 1)] if self.stem is not None else []
        return first + runs + ([Segment(self.tail, 1)] if self.tail is not None else [])


def towers(spec: ModelSpec) -> list[Tower]:
    """The towers that run, in order: those before the decoder feed it."""
    denoisers = [t for t in spec.towers if t.modality == "image_latent" and t.layout and not _planes(t)]
    return denoisers or [t for t in spec.towers if t.modality in TEXT_LIKE and t.layout]


def _planes(tower: Tower) -> bool:
    """Whether its blocks work on image planes (UNet): those are not run here yet."""
    return any(block.convolutions for block in tower.blocks)


def works(spec: ModelSpec) -> bool:
    """Whether the network that does the work is run: in an image pipeline the denoiser, else the decoder."""
    denoisers = [t for t in spec.towers if t.modality == "image_latent" and t.layout]
    return not denoisers or any(t in towers(spec) for t in denoisers)


def not_run(spec: ModelSpec) -> list[Tower]:
    """Towers of which only the weights are counted."""
    running = towers(spec)
    return [t for t in spec.towers if t.layout and t not in running]


def tokens(spec: ModelSpec, job: Job, tower: Tower) -> Size:
    """Tokens of one sequence in a tower: its own fixed number (times the images, in a text model), else the job's."""
    if tower.tokens is not None:
        images = job.images if tower is not spec.decoder and spec.decoder.modality == "text" else 1
        return tower.tokens * images
    return job.seq_len if tower is spec.decoder or job.source_len is None else job.source_len


def training(spec: ModelSpec, job: Job, *, detail: bool, capability: str | None = None) -> list[Stack]:
    """Every tower of a training step. Layer 0 is a kind of its own where a frozen embedding feeds it and nothing asks for
    its input's gradient (LoRA without checkpointing)."""
    found: list[Stack] = []
    for tower in towers(spec):
        length = tokens(spec, job, tower)
        source = found[-1].tokens if found else length

        def measure(
            block: Block, where: Place, tower: Tower = tower, length: Size = length, source: Size = source
        ) -> Cost:
            sizes = (tower.hidden, length, source)
            return passes.training_layer(
                job, block, *sizes, detail=detail, place=where, capability=capability
            )

        layers = _layers(tower, measure, partial(place, spec, job, tower))
        tail = (
            None
            if tower is spec.decoder
            else passes.norms(job, tower.norms, tower.hidden, length, detail=detail)
        )
        stem = _stem(job, tower, length)
        found.append(Stack(tower, length, layers, _embedding(job, tower, length), tail, stem))
    return found


def _stem(job: Job, tower: Tower, length: Size) -> Cost | None:
    """What is kept in front of a tower's layers, until all have gone back; a mask only as an argument of checkpoints."""
    trained = job.method == "full" and not job.frozen
    masks = any(isinstance(block.mixer, Attention) and block.mixer.block_mask for block in tower.blocks)
    size = rounded(tower.stem * job.micro_batch * itemsize(job.compute_dtype)) if trained else 0
    if masks and job.checkpointing != "none":
        size = size + rounded(length * length * itemsize(residual_dtype(job)))
    if isinstance(size, int) and not size:
        return None
    census = {("activations", "in front of the layers"): size} if isinstance(size, int) else {}
    return Cost(retained=size, retained_census=census)


def inference(
    spec: ModelSpec, job: Job, queries: Size, keys: Size, *, detail: bool, capability: str | None = None
) -> list[Stack]:
    """Every tower without gradients: the decoder on ``queries`` new tokens that see ``keys``, the others on theirs."""
    found: list[Stack] = []
    for tower in towers(spec):
        last = tower is spec.decoder and tower.tokens is None
        length = queries if last else tokens(spec, job, tower)
        seen = keys if last else length
        source = found[-1].tokens if found else length

        def measure(
            block: Block,
            _: Place,
            tower: Tower = tower,
            length: Size = length,
            seen: Size = seen,
            source: Size = source,
        ) -> Cost:
            sizes = (tower.hidden, length, seen, source)
            return passes.inference_layer(job, block, *sizes, detail=detail, capability=capability)

        found.append(Stack(tower, length, _layers(tower, measure), _embedding(job, tower, length)))
    return found


def rotary(tower: Tower) -> int:
    """The width of a tower's rotary tables; 0 without."""
    mixers = [b.mixer for b in tower.blocks if isinstance(b.mixer, Attention) and b.mixer.position == "rope"]
    return max((mixer.head_dim for mixer in mixers), default=0)


def residual_dtype(job: Job) -> str:
    """The number format that runs between layers."""
    return Run(job, Tape(), queries=1).residual


def _embedding(job: Job, tower: Tower, length: Size) -> Part:
    size = rounded(job.micro_batch * length * tower.hidden * itemsize(residual_dtype(job)))
    source = "transformers' models keep inputs_embeds until their forward returns"
    return counted("activations", size, "embedding output: tokens × width", source)


def _layers(
    tower: Tower,
    measure: Callable[[Block, Place], Cost],
    kind: Callable[[int], Place] = lambda position: Place(),
) -> list[Cost]:
    """Every layer's cost in order; layers of a kind share one."""
    costs: dict[tuple[int, Place], Cost] = {}
    found = []
    for position, index in enumerate(tower.layout):
        key = (index, kind(position))
        if key not in costs:
            costs[key] = measure(tower.blocks[index], key[1])
        found.append(costs[key])
    return found
