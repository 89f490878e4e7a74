"""The moments of a training step on one device."""

from __future__ import annotations

from loadmaster.arrays import Size
from loadmaster.jobs.job import Job
from loadmaster.memory import passes, stacks
from loadmaster.memory.components import activations, gradients, kv_cache, optimizer, runtime, weights
from loadmaster.memory.cost import Cost
from loadmaster.memory.evaluation import evaluation
from loadmaster.memory.inventory import gradient_bytes, trained
from loadmaster.memory.parts import Moment, Part, cached_casts, counted, work
from loadmaster.memory.stacks import Segment
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace

Groups = list[tuple[Cost, int]]


class Training:
    """A step: forward through all towers, loss, backward, optimizer."""

    def __init__(self, spec: ModelSpec, job: Job, compute_capability: str | None, *, detail: bool) -> None:
        self.spec, self.job = spec, job
        self.stacks = stacks.training(spec, job, detail=detail, capability=compute_capability)
        self.segments = [segment for stack in self.stacks for segment in stack.segments]
        self.head = passes.head_and_loss(spec, job, detail=detail) if spec.head else Cost()
        # Gradients of earlier micro-batches, or a buffer that is always there.
        self.accumulating = _several(job.grad_accumulation) or job.precision.gradients is not None
        self.streamed = "gradients" in job.offload or job.optimizer_in_backward
        self.gradients = gradients.gradients(spec, job)
        self.weights = [
            part for part in (weights.weights(spec, job), weights.adapter_weights(spec, job)) if part
        ]
        self.base = [
            *self.weights,
            *self._tables(),
            runtime.cublas_workspace(compute_capability, training=True),
        ]
        if "optimizer" not in job.offload:
            own = optimizer.master(spec, job)
            self.base += [optimizer.states(spec, job), *([own] if own else [])]
        self.evaluation = evaluation(spec, job, self._lasting(), compute_capability, detail=detail)
        self.before = [self._held()] if job.outputs_held or self.head.held is not None else []
        """What the loop's variables still hold of the step before while this one runs forward."""

    def moments(self) -> list[Moment]:
        """load, forward, loss, backward, optimizer step and evaluation."""
        load = Moment(
            "load", "weights on the device", [*self.weights, *weights.unpacking(self.spec, self.job)]
        )
        return [load, *self._forward(), *self._loss(), *self._backward(), self._step(), *self.evaluation]

    def _lasting(self) -> list[Part]:
        """What is there between steps too."""
        buffer = [self.gradients] if self.job.precision.gradients is not None and not self.streamed else []
        return [part for part in self.base if part.component != "inputs"] + buffer

    def _tables(self) -> list[Part]:
        tower = self.spec.decoder
        width = stacks.rotary(tower)
        buffers = activations.rotary_buffers(self.spec, self.job, width)
        return [buffers, activations.inputs(self.spec, self.job, width, stacks.residual_dtype(self.job))]

    def _step(self) -> Moment:
        parts = [*self.base, *self.before]
        if not self.streamed:
            parts.append(self.gradients)
        if "optimizer" not in self.job.offload and not self.job.optimizer_in_backward:
            parts.append(optimizer.step_temporaries(self.spec, self.job))
        return Moment("optimizer step", "inside step()", parts)

    def _made(self, finished: list[Size]) -> list[Part]:
        """Gradients that live: all of them while accumulating, none that is streamed away, else those made so far."""
        if self.streamed or self.accumulating:
            return [*self._kept(), *self._waiting()]
        made: Size = 0
        for size in finished:
            made = made + size
        return [counted("gradients", made, "gradients made so far", "accumulate_grad.h")]

    def _kept(self) -> list[Part]:
        return [self.gradients] if self.accumulating and not self.streamed else []

    def _waiting(self) -> list[Part]:
        """A parameter's gradient is accumulated once all its uses have given theirs: the output projection's waits for the
        token table's where both are one (input_buffer.cpp)."""
        if self.spec.head is None or not self.spec.head.tied:
            return []
        words = "gradient of the output projection, which waits for the token table's"
        source = "torch/csrc/autograd/input_buffer.cpp"
        return [counted("gradients", self.head.projection, words, source)]

    def _retained(self, groups: Groups) -> Part:
        return activations.retained(groups, offloaded="activations" in self.job.offload)

    def _forward(self) -> list[Moment]:
        found: list[Moment] = []
        before: Groups = []
        casts: Size = 0
        for segment in self.segments:
            casts = casts + segment.cost.casts * (segment.count - 1)
            done = self._retained([*before, (segment.cost, segment.count - 1)])
            held = [segment.held] if segment.held is not None else []
            parts = [
                *self.base,
                *self.before,
                *self._kept(),
                done,
                *held,
                cached_casts(casts),
                work(segment.cost.forward, segment.cost.forward_census),
            ]
            found.append(Moment("forward", "last layer", parts))
            casts = casts + segment.cost.casts
            before.append((segment.cost, segment.count))
        return found

    def _loss(self) -> list[Moment]:
        shared = [*self.base, *self._kept(), self._retained([(s.cost, s.count) for s in self.segments])]
        casts: Size = 0
        for segment in self.segments:
            casts = casts + segment.cost.casts * segment.count
        head = self.head
        return [
            Moment(
                "forward",
                "logits and loss",
                [*shared, *self.before, cached_casts(casts), work(head.forward, head.forward_census)],
            ),
            Moment(
                "backward", "loss and output projection", [*shared, work(head.backward, head.backward_census)]
            ),
        ]

    def _backward(self) -> list[Moment]:
        found = []
        groups = [(s.cost, s.count) for s in self.segments]
        finished: list[Size] = [self.head.gradients]
        for index in reversed(range(len(self.segments))):
            segment = self.segments[index]
            for left, name in ((segment.count - 1, "last layer"), (0, "first layer")):
                done = [*finished, segment.cost.gradients * (segment.count - 1 - left)]
                still = [*groups[:index], (segment.cost, left)]
                over = [*groups[index + 1 :], (segment.cost, segment.count - 1 - left)]
                parts = [*self._layer_back(segment, still, done), *_left_by(over)]
                found.append(Moment("backward", name, parts))
            finished.append(segment.cost.gradients * segment.count)
            if index and index == self.first_of_decoder:
                found.append(self._embedding_back(finished, groups[:index]))
        ends = not self.first_of_decoder or any(t.role == "token" for t in self.stacks[0].tower.embeddings)
        return [*found, self._embedding_back(finished, [])] if ends else found

    def _layer_back(self, segment: Segment, still: Groups, done: list[Size]) -> list[Part]:
        now = work(segment.cost.backward, segment.cost.backward_census)
        return [*self.base, *self._made(done), self._retained(still), *self._logits(), now]

    def _logits(self) -> list[Part]:
        """What the loop's variable keeps of the logits after the loss has been left behind."""
        return [] if self.head.held is None else [self.head.held]

    @property
    def first_of_decoder(self) -> int:
        """Where another tower ran before a decoder that reads it: the position of the decoder's first segment. Autograd goes
        back in the reverse order of forward (engine.cpp), so the decoder's token table comes before the other tower."""
        reads = any(block.cross is not None for block in self.spec.decoder.blocks)
        return sum(len(stack.segments) for stack in self.stacks[:-1]) if reads else 0

    def _embedding_back(self, finished: list[Size], still: Groups) -> Moment:
        """embedding_dense_backward makes a full table. A tied table already has the head's gradient: they are added in place,
        unless that is a view, then their sum is a third table while both live (input_buffer.cpp can_accumulate_inplace)."""
        table: Size = 0
        tied = 2 if self.spec.head is not None and self.spec.head.tied and self.head.projection_viewed else 1
        for h in trained(self.spec, self.job):
            if h.role in ("embedding", "position"):
                table = table + gradient_bytes(h) * (tied if h.role == "embedding" else 1)
        part = counted("gradients", table, "gradient of the token table", "aten embedding_dense_backward")
        embedding = self.stacks[-1].embedding if self.stacks else part
        return Moment(
            "backward",
            "embedding",
            [*self.base, *self._made(finished), self._retained(still), *self.before, embedding, part],
        )

    def _held(self) -> Part:
        job = self.job
        size: Size = 0 if self.head.held is None else self.head.held.size_bytes
        if job.outputs_held and job.checkpointing == "none":
            cache = kv_cache.kv_cache(self.spec, replace(job, kv_dtype=job.compute_dtype), job.seq_len)
            size = size + cache.size_bytes
        words = "logits and KV cache that the loop's `outputs` keeps"
        return counted("logits", size, words, "transformers CausalLMOutputWithPast")


def _left_by(groups: Groups) -> list[Part]:
    """What the backward of these layers has left, because nodes of the step's graph hold it."""
    size: Size = 0
    for cost, count in groups:
        size = size + cost.lasting * count
    if isinstance(size, int) and not size:
        return []
    source = "bitsandbytes MatMul8bitLt: ctx.tensors holds the input, not save_for_backward"
    return [counted("activations", size, "inputs of 8-bit layers that backward has passed", source)]


def _several(steps: Size) -> bool:
    return steps > 1 if isinstance(steps, int) else bool((steps > 1).all())
