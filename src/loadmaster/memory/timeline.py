"""The moments of a step at which memory can be highest, and everything that lives at each.

Between two such moments live bytes change in one direction (layers of a kind free and allocate the same), so the
highest point of a phase is one of its moments. A peak is the largest moment, not a sum of each component's own peak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from loadmaster.arrays import Size, minimum, rounded
from loadmaster.dtypes import itemsize
from loadmaster.jobs.job import Job
from loadmaster.memory import passes
from loadmaster.memory.blocks.run import Run
from loadmaster.memory.components import activations, gradients, kv_cache, optimizer, runtime, weights
from loadmaster.memory.inventory import gradient_bytes, parameters, trained
from loadmaster.memory.parts import Census, Moment, Part, commas
from loadmaster.memory.passes import Cost
from loadmaster.memory.tape import Tape
from loadmaster.models.spec import Attention, Block, ModelSpec, Tower


@dataclass(slots=True, eq=False)
class Segment:
    """Consecutive equal layers of a tower."""

    cost: Cost
    count: int


def moments(
    spec: ModelSpec, job: Job, compute_capability: str | None = None, *, detail: bool
) -> list[Moment]:
    """Every candidate for the peak, in the order of a step."""
    if job.training:
        return Training(spec, job, compute_capability, detail).moments()
    return Inference(spec, job, compute_capability, detail).moments()


class Training:
    """A training step on one device."""

    def __init__(self, spec: ModelSpec, job: Job, compute_capability: str | None, detail: bool) -> None:
        self.spec, self.job, self.detail = spec, job, detail
        tower = spec.decoder
        self.residual = Run(job, Tape(), queries=job.seq_len).residual
        self.layers = _layers(tower, self._layer, first=job.lora is not None and job.checkpointing == "none")
        self.segments = _segments(self.layers)
        head = spec.head
        self.head = (
            passes.head_and_loss(job, head, tower.norms, tower.hidden, detail=detail) if head else Cost()
        )
        self.gradients = gradients.gradients(spec, job)
        self.states = optimizer.states(spec, job)
        self.accumulating = (
            job.grad_accumulation > 1
            if isinstance(job.grad_accumulation, int)
            else bool((job.grad_accumulation > 1).all())
        )
        self.embedding = _part(
            "activations",
            rounded(job.micro_batch * job.seq_len * tower.hidden * itemsize(self.residual)),
            "embedding output: tokens × width",
            "LlamaModel.forward keeps inputs_embeds until it returns",
        )
        self.base = [weights.weights(spec, job)]
        adapter = weights.adapter_weights(spec, job)
        self.base += [adapter] if adapter else []
        self.base += [
            self.states,
            activations.inputs(job, _rotary(tower), self.residual),
            runtime.cublas_workspace(compute_capability, training=True),
        ]
        if job.outputs_held:
            self.base.append(self._held())

    def _layer(self, block: Block, first: bool) -> Cost:
        return passes.training_layer(
            self.job, block, self.spec.decoder.hidden, detail=self.detail, first=first
        )

    def moments(self) -> list[Moment]:
        """load, forward, loss, backward and optimizer step."""
        return [
            Moment(
                "load",
                "weights on the device",
                self.base[: 2 if self.job.lora else 1] + _unpacking(self.spec, self.job),
            ),
            *self._forward(),
            *self._loss(),
            *self._backward(),
            Moment(
                "optimizer step",
                "inside step()",
                [*self.base, self.gradients, optimizer.step_temporaries(self.spec, self.job)],
            ),
        ]

    def _kept_gradients(self) -> list[Part]:
        return [self.gradients] if self.accumulating else []

    def _forward(self) -> list[Moment]:
        found: list[Moment] = []
        before: list[tuple[Cost, int]] = []
        casts: Size = 0
        for segment in self.segments:
            done = [*before, (segment.cost, segment.count - 1)]
            casts = casts + segment.cost.casts * (segment.count - 1)
            parts = [
                *self.base,
                *self._kept_gradients(),
                activations.retained(done),
                *([] if self.layers[0].keeps_input else [self.embedding]),
                _casts(casts),
            ]
            found.append(
                Moment(
                    "forward",
                    "last layer",
                    [*parts, _work(segment.cost.forward, segment.cost.forward_census)],
                )
            )
            casts = casts + segment.cost.casts
            before.append((segment.cost, segment.count))
        return found

    def _loss(self) -> list[Moment]:
        everything = activations.retained([(s.cost, s.count) for s in self.segments])
        casts: Size = 0
        for segment in self.segments:
            casts = casts + segment.cost.casts * segment.count
        shared = [*self.base, *self._kept_gradients(), everything]
        return [
            Moment(
                "forward",
                "logits and loss",
                [*shared, _casts(casts), _work(self.head.forward, self.head.forward_census)],
            ),
            Moment(
                "backward",
                "loss and output projection",
                [*shared, _work(self.head.backward, self.head.backward_census)],
            ),
        ]

    def _backward(self) -> list[Moment]:
        found = []
        groups = [(s.cost, s.count) for s in self.segments]
        made: list[tuple[Size, str]] = [(self.head.gradients, "head")]
        for index in reversed(range(len(self.segments))):
            segment = self.segments[index]
            for left, name in ((segment.count - 1, "last layer"), (0, "first layer")):
                finished = [*made, (segment.cost.gradients * (segment.count - 1 - left), "layers")]
                found.append(
                    self._layer_back(segment, [*groups[:index], (segment.cost, left)], finished, name)
                )
            made.append((segment.cost.gradients * segment.count, "layers"))
        found.append(self._embedding_back(made))
        return found

    def _layer_back(
        self, segment: Segment, still: list[tuple[Cost, int]], finished: list[tuple[Size, str]], name: str
    ) -> Moment:
        grads: list[Part] = self._kept_gradients() or [_gradient_part(finished)]
        parts = [
            *self.base,
            *grads,
            activations.retained(still),
            _work(segment.cost.backward, segment.cost.backward_census),
        ]
        return Moment("backward", name, parts)

    def _embedding_back(self, made: list[tuple[Size, str]]) -> Moment:
        """embedding_dense_backward makes a full table; a tied table already has the head's gradient, a view, so the sum of
        the two is a third table while both live (input_buffer.cpp; measured: backward of a tied table takes three)."""
        table: Size = 0
        tied = 2 if self.spec.head is not None and self.spec.head.tied else 1
        for h in trained(self.spec, self.job):
            if h.role in ("embedding", "position"):
                table = table + gradient_bytes(h) * (tied if h.role == "embedding" else 1)
        grads = self._kept_gradients() or [_gradient_part(made)]
        return Moment(
            "backward",
            "embedding",
            [
                *self.base,
                *grads,
                self.embedding,
                _part("gradients", table, "gradient of the token table", "aten embedding_dense_backward"),
            ],
        )

    def _held(self) -> Part:
        tower, head = self.spec.decoder, self.spec.head
        job = self.job
        size: Size = 0
        if head is not None and job.loss in ("hf", "native", "chunked"):
            size = rounded(job.micro_batch * job.seq_len * head.vocab * itemsize(job.compute_dtype))
        if job.checkpointing == "none":
            size = size + kv_cache.kv_cache(self.spec, replace_kv(job), job.seq_len).size_bytes
        del tower
        return _part(
            "logits",
            size,
            "logits and KV cache that the loop's `outputs` keeps",
            "transformers CausalLMOutputWithPast",
        )


def replace_kv(job: Job) -> Job:
    """The job with its cache in the compute format."""
    from loadmaster.records import replace as changed

    return changed(job, kv_dtype=job.compute_dtype)


class Inference:
    """Prefill and decoding on one device."""

    def __init__(self, spec: ModelSpec, job: Job, compute_capability: str | None, detail: bool) -> None:
        self.spec, self.job, self.detail = spec, job, detail
        tower = spec.decoder
        self.prompt = job.seq_len - job.new_tokens
        self.chunk = self.prompt if job.prefill_chunk is None else minimum(job.prefill_chunk, self.prompt)
        residual = Run(job, Tape(), queries=job.seq_len).residual
        self.base = [weights.weights(spec, job), runtime.cublas_workspace(compute_capability, training=False)]
        self.inputs = activations.inputs(job, _rotary(tower), residual)
        size = rounded(job.micro_batch * self.chunk * tower.hidden * itemsize(residual))
        self.embedding = _part(
            "activations",
            size,
            "embedding output of the tokens at work",
            "LlamaModel.forward keeps inputs_embeds until it returns",
        )
        self.layers = self._run(self.chunk, self.prompt)
        self.segments = _segments(self.layers)
        self.head = (
            passes.inference_head(job, spec.head, tower.norms, tower.hidden, self.chunk, detail=detail)
            if spec.head
            else None
        )

    def _run(self, queries: Size, keys: Size) -> list[Cost]:
        tower = self.spec.decoder
        return _layers(
            tower,
            lambda block, _: passes.inference_layer(
                self.job, block, tower.hidden, queries, keys, detail=self.detail
            ),
        )

    def moments(self) -> list[Moment]:
        """load, prefill and decode."""
        job = self.job
        filled = [kv_cache.kv_cache(self.spec, job, self.prompt)] if job.kv_cache else []
        common = [*self.base, *filled, self.inputs]
        found = [Moment("load", "weights on the device", self.base[:1] + _unpacking(self.spec, job))]
        for segment in self.segments:
            work = _work(segment.cost.forward, segment.cost.forward_census)
            found.append(Moment("prefill", "last layer", [*common, self.embedding, work]))
        if self.head is not None:
            found.append(
                Moment("prefill", "logits", [*common, _work(self.head.forward, self.head.forward_census)])
            )
        return found + (self._decode() if job.kv_cache and _some(job.new_tokens) else [])

    def _decode(self) -> list[Moment]:
        whole = kv_cache.kv_cache(self.spec, self.job, self.job.seq_len)
        grown = kv_cache.growth(self.spec, self.job, self.job.seq_len)
        return [
            Moment(
                "decode",
                "last token",
                [*self.base, whole, grown, self.inputs, _work(s.cost.forward, s.cost.forward_census)],
            )
            for s in _segments(self._run(1, self.job.seq_len))
        ]


def _layers(tower: Tower, measure: Callable[[Block, bool], Cost], *, first: bool = False) -> list[Cost]:
    """Every layer's cost in order; layers of a kind share one. ``first``: layer 0 is a kind of its own."""
    costs: dict[tuple[int, bool], Cost] = {}
    found = []
    for position, index in enumerate(tower.layout):
        key = (index, first and position == 0)
        if key not in costs:
            costs[key] = measure(tower.blocks[index], key[1])
        found.append(costs[key])
    return found


def _segments(layers: list[Cost]) -> list[Segment]:
    """Runs of equal layers. Many short runs (alternating layers) are taken as one run of each kind: what they keep is the
    same, and the order within a pair moves a peak by at most one layer."""
    runs = [Segment(cost, len(list(group))) for cost, group in groupby(layers, key=lambda cost: cost)]
    if len(runs) <= 8:
        return runs
    merged: dict[int, Segment] = {}
    for run in runs:
        merged.setdefault(id(run.cost), Segment(run.cost, 0)).count += run.count
    return list(merged.values())


def _rotary(tower: Tower) -> int:
    return max(
        (
            b.mixer.head_dim
            for b in tower.blocks
            if isinstance(b.mixer, Attention) and b.mixer.position == "rope"
        ),
        default=0,
    )


def _unpacking(spec: ModelSpec, job: Job) -> list[Part]:
    """Loading in 4 bits brings each tensor to the device in its stored format before packing it."""
    if job.quantization is None:
        return []
    largest = max((int(h.elements) for h in parameters(spec, job) if h.packed), default=0)
    return [
        _part(
            "temporaries",
            2 * largest,
            "largest tensor before it is packed: values × 2 B",
            "transformers quantizer_bnb_4bit: a parameter is moved, then quantised",
        )
    ]


def _casts(size: Size) -> Part:
    return _part(
        "weight copies",
        size,
        "weights that autocast has cast and cached until forward ends",
        "autocast_mode.cpp cached_cast",
    )


def _work(size: Size, census: Census) -> Part:
    return Part(
        "temporaries",
        size,
        lambda: f"one layer at work: {commas(size)} B",
        activations.SOURCE,
        origin="modelled",
        census=census,
    )


def _gradient_part(finished: list[tuple[Size, str]]) -> Part:
    total: Size = 0
    for size, _ in finished:
        total = total + size
    return _part("gradients", total, "gradients made so far", "accumulate_grad.h")


def _part(component: str, size: Size, words: str, source: str) -> Part:
    return Part(component, size, lambda: f"{words} = {commas(size)} B", source)


def _some(tokens: Size) -> bool:
    return tokens > 0 if isinstance(tokens, int) else bool((tokens > 0).any())
