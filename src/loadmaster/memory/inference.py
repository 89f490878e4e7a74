"""The moments of inference on one device: load, prefill, decode; load and forward for what generates nothing."""

from __future__ import annotations

from loadmaster.arrays import Size, minimum
from loadmaster.jobs.job import Job
from loadmaster.memory import passes, stacks
from loadmaster.memory.components import activations, kv_cache, runtime, weights
from loadmaster.memory.parts import Moment, work
from loadmaster.models.parameters import generates
from loadmaster.models.spec import ModelSpec
from loadmaster.records import replace


class Inference:
    """A prompt through all towers, then tokens one by one through the decoder."""

    def __init__(self, spec: ModelSpec, job: Job, compute_capability: str | None, *, detail: bool) -> None:
        self.spec, self.job, self.detail = spec, job, detail
        self.phase = "prefill" if generates(spec) else "forward"
        self.prompt = job.seq_len - job.new_tokens if generates(spec) else job.seq_len
        if job.source_len is None:
            # What another tower reads is a part of the prompt.
            self.job = job = replace(job, source_len=self.prompt)
        self.chunk = self.prompt if job.prefill_chunk is None else minimum(job.prefill_chunk, self.prompt)
        width = stacks.rotary(spec.decoder)
        self.weights = weights.weights(spec, job)
        self.base = [
            self.weights,
            activations.rotary_buffers(spec, job, width),
            activations.inputs(spec, job, width, stacks.residual_dtype(job)),
            runtime.cublas_workspace(compute_capability, training=False),
        ]
        kept = weights.kept(spec, job)
        self.base += [] if kept is None else [kept]
        self.capability = compute_capability
        self.stacks = self._run(self.chunk, self.prompt)
        rows = self.chunk if spec.decoder.tokens is None else spec.decoder.tokens
        every = spec.head is not None and not spec.head.last_only
        asked = replace(job, logits="all") if every else job
        self.head = passes.inference_head(spec, asked, rows, detail=detail) if spec.head else None
        self.cache = kv_cache.kv_cache(spec, job, kv_cache.length(job, self.prompt))

    def _run(self, queries: Size, keys: Size) -> list[stacks.Stack]:
        return stacks.inference(
            self.spec, self.job, queries, keys, detail=self.detail, capability=self.capability
        )

    def moments(self) -> list[Moment]:
        """load, prefill and decode."""
        job = self.job
        common = [*self.base, *([self.cache] if job.kv_cache else [])]
        found = [self._load()]
        for stack in self.stacks:
            for segment in stack.segments:
                held = [] if segment.held is None else [segment.held]
                now = work(segment.cost.forward, segment.cost.forward_census)
                found.append(Moment(self.phase, "last layer", [*common, *held, now]))
        if self.head is not None:
            now = work(self.head.forward, self.head.forward_census)
            found.append(Moment(self.phase, "logits", [*common, now]))
        decodes = generates(self.spec) and job.kv_cache and _some(job.new_tokens)
        return found + (self._decode() if decodes else [])

    def _load(self) -> Moment:
        parts = [self.weights, *weights.unpacking(self.spec, self.job)]
        unfused = weights.unfused(self.spec, self.job)
        if unfused is None:
            return Moment("load", "weights on the device", parts)
        return Moment("load", "attention modules joined", [*parts, unfused, self.cache])

    def _decode(self) -> list[Moment]:
        whole = kv_cache.kv_cache(self.spec, self.job, kv_cache.length(self.job, self.job.seq_len))
        grown = kv_cache.growth(self.spec, self.job, self.job.seq_len)
        last = self._run(1, self.job.seq_len)[-1]
        return [
            Moment(
                "decode",
                "last token",
                [*self.base, whole, grown, work(s.cost.forward, s.cost.forward_census)],
            )
            for s in last.segments
        ]


def _some(tokens: Size) -> bool:
    return tokens > 0 if isinstance(tokens, int) else bool((tokens > 0).any())
