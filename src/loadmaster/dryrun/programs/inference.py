"""Inference as a Job says: a prompt through the model, then tokens one by one beside a cache of keys and values.

Generation asks of the values of tokens when to stop, so it is our own loop. Its highest moment is its end: after the prompt
the cache is set to two tokens short of its final length, and two tokens are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from loadmaster.dryrun.programs import batches
from loadmaster.dryrun.programs.training import autocast, picture_dtype
from loadmaster.dryrun.session import Session
from loadmaster.jobs.job import Job
from loadmaster.records import replace

Progress = Callable[[str, float], None]
LAST_TOKENS = 2
SOME_CHUNKS = 8
"""Chunks of a prompt that are all run."""


class Inference:
    """A model on the device and the job it answers."""

    def __init__(self, session: Session, model: Any, job: Job) -> None:
        self.session, self.model, self.job = session, model.eval(), job
        self.names = batches.arguments(model)
        self.cached = job.kv_cache and batches.takes(model, "use_cache") and can_generate(model)
        self.cache: Any = None
        self.states: Any = None
        known = ("cache", "past_key_values", "cache_params")
        self.cache_name = next((name for name in known if name in self.names), known[1])

    def run(self, progress: Progress) -> None:
        """The prompt; then, where tokens are to be generated, the last two of them."""
        prompt = self.job.seq_len - self.job.new_tokens if can_generate(self.model) else self.job.seq_len
        batch = self._batch(max(prompt, 1))
        with torch.no_grad(), autocast(self.job):
            progress("prompt", 0.3)
            self._enter("prefill" if can_generate(self.model) else "forward")
            self._prompt(batch)
            if self.cached and self.job.new_tokens:
                progress("generation", 0.8)
                self._generate(batch)
        self.session.watch.pinned_phase = None

    def _batch(self, length: int) -> batches.Batch:
        asked = replace(self.job, seq_len=length)
        batch = batches.example(self.model, asked, self.job.micro_batch, labels=False)
        return batches.on_device(batch, self.session.tracker, picture_dtype(self.job))

    def _enter(self, phase: str) -> None:
        self.session.watch.pinned_phase = phase
        self.session.tracker.enter(phase, 1)

    def _options(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if batches.takes(self.model, "use_cache"):
            found["use_cache"] = self.cached
        whole = self.job.facts.upcast_logits  # before there was logits_to_keep
        if self.job.logits == "last" and "logits_to_keep" in self.names and not whole:
            found["logits_to_keep"] = 1
        return found

    def _prompt(self, batch: batches.Batch) -> None:
        jumps = self.cached and _count(batch, self.job.prefill_chunk) > SOME_CHUNKS
        for number, part in enumerate(_chunks(batch, self.job.prefill_chunk, ends_only=jumps)):
            if number and jumps:
                # The cache only grows: its highest moment is the last chunk, before which it is set to all other tokens.
                seen = batch["input_ids"].shape[1] - part["input_ids"].shape[1]
                for layer in layers_of(self.cache):
                    stretch(layer, seen, self.session.tracker)
            if self.cache is not None:
                part[self.cache_name] = self.cache
            outputs = self.model(**part, **self._options())
            self.cache = cache_of(outputs)
            self.states = getattr(outputs, "encoder_last_hidden_state", None)
            self._tag()
            self._next(outputs)
            del outputs

    def _encoded(self, batch: batches.Batch) -> batches.Batch:
        """What of an encoder-decoder's prompt goes on to each token: the encoder's states (generate() keeps them), the mask."""
        if self.states is None:
            return {}
        from transformers.modeling_outputs import BaseModelOutput

        mask = {"attention_mask": batch["attention_mask"]} if "attention_mask" in batch else {}
        return {"encoder_outputs": BaseModelOutput(last_hidden_state=self.states), **mask}

    def _next(self, outputs: Any) -> None:
        """generate() takes the last token's logits as float32 (GenerationMixin._sample)."""
        logits = getattr(outputs, "logits", None)
        if can_generate(self.model) and isinstance(logits, torch.Tensor) and logits.dim() == 3:
            logits[:, -1, :].to(copy=True, dtype=torch.float32)

    def _generate(self, batch: batches.Batch) -> None:
        job = self.job
        steps = min(LAST_TOKENS, job.new_tokens)
        self._enter("decode")
        for layer in layers_of(self.cache):
            stretch(layer, job.seq_len - steps, self.session.tracker)
        base = self._encoded(batch)
        for step in range(steps):
            length = job.seq_len - steps + step + 1
            old = self._old_cache()
            outputs = self.model(**self._token(base, length), **self._options())
            self.cache = cache_of(outputs)
            self._tag()
            self._next(outputs)
            del outputs, old

    def _old_cache(self) -> list[Any]:
        """What lives on while a token's new cache is built: tuples of keys and values before transformers 4.42."""
        if self.job.facts.cache != "tuple":
            return []
        return [(layer.keys, layer.values) for layer in layers_of(self.cache) if hasattr(layer, "keys")]

    def _token(self, base: batches.Batch, length: int) -> batches.Batch:
        count = self.job.micro_batch
        token = torch.zeros(count, 1, dtype=torch.long).to("cuda")
        batch: batches.Batch = {**base, self.cache_name: self.cache}
        decoder = getattr(self.model.config, "is_encoder_decoder", False)
        batch["decoder_input_ids" if decoder else "input_ids"] = token
        # Without a mask, models that place pictures count positions from the cache.
        if "attention_mask" in self.names and not decoder and "image_grid_thw" not in self.names:
            mask: Any = torch.ones(count, length, dtype=torch.long).to("cuda")
            mask._expected = 1.0
            batch["attention_mask"] = mask
        return batch

    def _tag(self) -> None:
        for layer in layers_of(self.cache):
            for value in vars(layer).values():
                if isinstance(value, torch.Tensor):
                    self.session.tracker.tag(value, "kv cache")


def can_generate(model: Any) -> bool:
    """Whether tokens can be generated with this model."""
    return bool(getattr(model, "can_generate", lambda: False)())


def cache_of(outputs: Any) -> Any:
    """Keys and values (or states) that a model returned."""
    found = (getattr(outputs, name, None) for name in ("past_key_values", "cache_params", "cache"))
    return next((each for each in found if each is not None), None)


def layers_of(cache: Any) -> Iterator[Any]:
    """The layers of a cache, of both halves of an encoder-decoder's."""
    for half in ("self_attention_cache", "cross_attention_cache"):
        if getattr(cache, half, None) is not None:
            yield from layers_of(getattr(cache, half))
    yield from getattr(cache, "layers", None) or ()


def stretch(layer: Any, length: int, tracker: Any) -> None:
    """Keys and values of a layer as they are when ``length`` tokens have been seen; a sliding window keeps no more of them
    than it has places (cache_utils.py DynamicSlidingWindowLayer), and a cross-attention's stay."""
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.dim() != 4:
        return
    window = getattr(layer, "sliding_window", None)
    places = length if window is None else min(length, window - 1)
    if places <= keys.shape[-2]:
        return
    shapes = {"keys": keys.shape, "values": values.shape}
    dtype = keys.dtype
    del keys, values
    for name, before in shapes.items():
        setattr(layer, name, None)
        fresh = torch.empty((*before[:-2], places, before[-1]), dtype=dtype, device="cuda")
        tracker.tag(fresh, "kv cache")
        setattr(layer, name, fresh)
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = length


def _count(batch: batches.Batch, chunk: int | None) -> int:
    """Parts of a prompt of ``chunk`` tokens each."""
    ids = batch.get("input_ids")
    return 1 if chunk is None or ids is None else -(-ids.shape[1] // chunk)


def _chunks(batch: batches.Batch, chunk: int | None, *, ends_only: bool) -> Iterator[batches.Batch]:
    """The prompt in parts of ``chunk`` tokens, or of these the first and the last; pictures go with the first."""
    count = _count(batch, chunk)
    if chunk is None or count == 1:
        yield dict(batch)
        return
    ids = batch["input_ids"]
    for number in (0, count - 1) if ends_only else range(count):
        first = number * chunk
        part: batches.Batch = (
            {} if first else {k: v for k, v in batch.items() if k not in ("input_ids", "attention_mask")}
        )
        part["input_ids"] = ids[:, first : first + chunk]
        if "attention_mask" in batch:
            part["attention_mask"] = batch["attention_mask"][:, : first + chunk]
        yield part
