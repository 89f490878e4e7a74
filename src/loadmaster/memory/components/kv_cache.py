"""The KV cache of generation and serving, and recurrent states of state-space layers."""

from __future__ import annotations

from loadmaster.arrays import Size, maximum, minimum
from loadmaster.dtypes import BITS
from loadmaster.jobs.job import Job
from loadmaster.memory.parts import Part, commas
from loadmaster.memory.stacks import tokens as tower_tokens
from loadmaster.memory.stacks import towers
from loadmaster.models.parameters import kv_layers, state_bytes
from loadmaster.models.spec import ModelSpec

SOURCE = (
    "transformers cache_utils.DynamicCache: keys and values of every layer, batch × KV heads × tokens × (key + value "
    "head); sliding-window layers keep their window"
)


def dtype(job: Job) -> str:
    """The number format of cached keys and values."""
    return job.kv_dtype or job.compute_dtype


PACKED = {"q8_0": (34, 32), "q4_0": (18, 32)}
"""llama.cpp's formats of cached values: bytes and values of a block (gguf-py constants.py GGML_QUANT_SIZES)."""


def stored_bytes(values: Size, dtype: str) -> Size:
    """Bytes of cached values in a format."""
    size, block = PACKED.get(dtype) or (BITS[dtype], 8)
    return values * size // block


def kv_cache(spec: ModelSpec, job: Job, tokens: Size) -> Part:
    """Cache of ``micro_batch`` sequences of ``tokens``."""
    layers = kv_layers(spec, latent=True)
    total: Size = 0
    for kv in layers:
        kept = _seen(spec, job, tokens) if kv.cross else _least(tokens, kv.window)
        total = total + stored_bytes(kv.layers * kv.values * kept * job.micro_batch, dtype(job))
    if dtype(job) in BITS:
        total = total + state_bytes(spec, dtype(job)) * job.micro_batch

    def formula() -> str:
        terms = [
            f"{kv.layers} {'layer' if kv.layers == 1 else 'layers'} × {kv.values:,} values × "
            f"{_kept(_seen(spec, job, tokens) if kv.cross else tokens, kv.window)} tokens"
            for kv in layers
        ]
        return f"{commas(job.micro_batch)} sequences × ({' + '.join(terms) or 'recurrent states'}) × {dtype(job)}"

    return Part("kv cache", total, formula, SOURCE)


def _seen(spec: ModelSpec, job: Job, tokens: Size) -> Size:
    """What a cross-attention keeps: keys and values of the tower in front, made once."""
    running = towers(spec)
    place = running.index(spec.decoder) if spec.decoder in running else 0
    return tower_tokens(spec, job, running[place - 1]) if place else tokens


def _least(tokens: Size, window: int | None) -> Size:
    return tokens if window is None else minimum(tokens, window)


def _kept(tokens: Size, window: int | None) -> str:
    return commas(tokens) if window is None else f"min({commas(tokens)}, {window:,})"


def length(job: Job, tokens: Size) -> Size:
    """Tokens that a cache holding ``tokens`` is made for: all of the job's, those that are generated, or just these."""
    if job.facts.cache == "static":
        return job.seq_len
    if job.facts.cache == "generated":
        return maximum(job.new_tokens, 1)
    return tokens


def growth(spec: ModelSpec, job: Job, tokens: Size) -> Part:
    """What decoding holds beside the cache: one layer's new keys while the old ones live (DynamicCache appends with
    torch.cat), the whole old cache while a new tuple of all layers is built, or nothing (static)."""
    kind = job.facts.cache
    if kind == "tuple":
        old = kv_cache(spec, job, tokens - 1)
        return Part(
            "kv cache", old.size_bytes, lambda: f"the cache of the token before: {old.formula()}", SOURCE
        )
    if kind in ("static", "generated"):
        return Part("temporaries", 0 * tokens, lambda: "0", SOURCE)
    largest: Size = 0
    for kv in kv_layers(spec, latent=True):
        kept = 0 * tokens if kv.cross else _least(tokens, kv.window)
        largest = maximum(largest, stored_bytes((kv.values + 1) // 2 * kept * job.micro_batch, dtype(job)))
    return Part("temporaries", largest, lambda: f"torch.cat of one layer's keys: {commas(largest)} B", SOURCE)
