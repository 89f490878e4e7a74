"""Servers that fill a card by a budget of their own: what vLLM and llama.cpp take, and how much KV cache is left.

vLLM runs the model once on as many tokens as a step may hold and samples for as many sequences as may run, takes the peak,
and gives the rest of its share of the card to KV blocks. llama.cpp makes the cache of its whole context at once.
"""

from __future__ import annotations

from loadmaster.arrays import Size, amount, ceil_div, maximum, minimum
from loadmaster.dtypes import BITS, itemsize
from loadmaster.jobs.job import Job
from loadmaster.memory import stacks
from loadmaster.memory.components import kv_cache, runtime, weights
from loadmaster.memory.parts import Moment, Part, commas, counted
from loadmaster.models.parameters import KvLayers, kv_layers, state_bytes
from loadmaster.models.spec import Attention, Experts, Mlp, ModelSpec
from loadmaster.records import Interval, Record, replace
from loadmaster.units import MIB

VLLM_SOURCE = (
    "vllm/v1/worker/gpu_worker.py determine_available_memory: gpu_memory_utilization × total − weights − peak of the profile "
    "run − memory outside torch; vllm/v1/worker/gpu_model_runner.py profile_run, _dummy_sampler_run"
)
SAMPLER_BYTES = 2 + 4 + (4 + 8) + 8 + (4 + 8)
"""A logit of the sampler's dummy run at its peak: bfloat16 logits, float32 logits, sorted values and int64 indices
(topk_topp_sampler.py apply_top_k_top_p), reverse indices (aten SortStable.cu segmented_sort_pairs), and what CUB's segmented
radix sort takes: another copy of keys and values."""
BLOCK_TOKENS = 16
SMALL = (2048, 256)
LARGE = (4 * SMALL[0], 4 * SMALL[1])
"""(max_num_batched_tokens, max_num_seqs) of the API server on cards of 70 GiB and more but the A100, and on others."""
LARGE_CARDS = ("9.0", "10.0", "10.3")
"""Compute capabilities whose cards all have 70 GiB and more."""
OUTSIDE = Interval(low=128 * MIB, likely=136 * MIB, high=1800 * MIB)
"""What the profile run takes outside torch on one GPU: 0.13 to 0.14 GiB in logs of vLLM 0.11 on H100, 1.79 GiB in one of 2024."""

LLAMA_SOURCE = (
    "llama.cpp src/llama-context.cpp graph_reserve: the buffer of the graph for n_ubatch (512) tokens; logs: Llama 3 8B 258.50 "
    "MiB (logits), Llama 2 7B without flash attention at 2048 tokens 164 MiB (scores)"
)
UBATCH, CELLS = 512, 256


class Budget(Record, kw_only=True):
    """What a server's budget leaves to KV cache. ``requested_bytes`` of the card less weights, work (the profile run's peak, or
    the compute buffer) and other memory is the pool; ``tokens`` fit it, or ``sequences`` of the job's length, each
    ``sequence_bytes``; ``starts``: at least one does."""

    engine: str
    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    work_bytes: int
    other_bytes: int
    pool: Interval
    block_tokens: int
    tokens: int
    sequences: int
    sequence_bytes: int
    starts: bool
    source: str


class Served:
    """A server at work on a job's sequences: weights, its own buffers, and the cache of ``micro_batch`` sequences."""

    def __init__(self, spec: ModelSpec, job: Job, compute_capability: str | None) -> None:
        self.spec, self.job = spec, job
        self.weights = weights.weights(spec, job)
        if job.facts.engine == "llama.cpp":
            self.work = compute_buffer(spec, job)
        else:
            self.work = profile_run(spec, job, compute_capability)
        self.cache = cache(spec, job, job.micro_batch, compute_capability)

    def moments(self) -> list[Moment]:
        """load, prefill and decode."""
        started = [self.weights, self.work]
        return [
            Moment("load", "weights on the device", [self.weights]),
            Moment("prefill", "a whole step of tokens", started),
            Moment("decode", "all sequences at full length", [*started, self.cache]),
        ]


def batch_limits(job: Job, compute_capability: str | None) -> tuple[Size, Size]:
    """(tokens in a step, sequences that run): as asked, else vLLM's defaults for the card."""
    tokens, sequences = LARGE if compute_capability in LARGE_CARDS else SMALL
    return (
        tokens if job.prefill_chunk is None else job.prefill_chunk,
        sequences if job.max_sequences is None else job.max_sequences,
    )


def profile_run(spec: ModelSpec, job: Job, compute_capability: str | None) -> Part:
    """The peak of vLLM's profile run: a compiled forward pass, or the sampler's sort of all sequences' logits."""
    tokens, sequences = batch_limits(job, compute_capability)
    one = replace(job, micro_batch=1, compile=True, framework="transformers", attention="flash")
    run = (
        stacks.inference(_flash(spec), one, tokens, tokens, detail=False)[-1] if spec.decoder.layout else None
    )
    forward: Size = 0
    for segment in run.segments if run is not None else []:
        forward = maximum(forward, segment.cost.forward)
    hidden = tokens * spec.decoder.hidden * itemsize(stacks.residual_dtype(one))
    vocab = spec.head.vocab if spec.head is not None else 0
    sampling = SAMPLER_BYTES * minimum(sequences, tokens) * vocab + hidden
    size = maximum(forward, sampling)
    workspace = runtime.cublas_workspace(compute_capability, training=False).size_bytes

    def words() -> str:
        sampler = f"{SAMPLER_BYTES} B × {commas(sequences)} sequences × {vocab:,} logits + hidden states"
        return (
            f"max({sampler}, forward of {commas(tokens)} tokens {commas(forward)} B) + {commas(workspace)} B"
        )

    return Part("profile run", size + workspace, words, VLLM_SOURCE, "modelled")


def _flash(spec: ModelSpec) -> ModelSpec:
    """The model with attention as vLLM's kernels run it: sinks, caps and windows are theirs too, no scores are written."""
    towers = []
    for tower in spec.towers:
        blocks = []
        for block in tower.blocks:
            mixer = block.mixer
            if isinstance(mixer, Attention):
                mixer = replace(mixer, sinks=0, softcap=False, sdpa=True, window=None)
            blocks.append(replace(block, mixer=mixer))
        towers.append(replace(tower, blocks=tuple(blocks)))
    return replace(spec, towers=tuple(towers))


def compute_buffer(spec: ModelSpec, job: Job) -> Part:
    """llama.cpp's buffer for the largest part of the graph: logits, scores of attention, or a feed-forward, in float32."""
    rows: Size = UBATCH if job.prefill_chunk is None else job.prefill_chunk
    rows = minimum(rows, job.seq_len)
    hidden = spec.decoder.hidden
    vocab = spec.head.vocab if spec.head is not None else 0
    width = max((_width(block.feedforward) for block in spec.decoder.blocks), default=0)
    heads: Size = max(
        (b.mixer.heads for b in spec.decoder.blocks if isinstance(b.mixer, Attention)), default=0
    )
    context = llama_context(job)
    logits = rows * (vocab + hidden) * 4
    feedforward = rows * 2 * (width + hidden) * 4
    scores = rows * context * (4 + 2) if job.attention != "eager" else rows * context * 4 * (heads + 1)
    size = maximum(maximum(logits, feedforward), scores + rows * hidden * 4 * 4)
    words = f"n_ubatch {commas(rows)} × the widest of vocabulary, feed-forward and context, float32"
    return counted("compute buffer", size, words, LLAMA_SOURCE)


def _width(part: Mlp | Experts | None) -> int:
    if isinstance(part, Experts):
        return part.per_token * part.expert.width
    return part.width if part is not None else 0


def llama_context(job: Job) -> Size:
    """Cells of llama.cpp's cache: all sequences' lengths, padded to 256."""
    return ceil_div(job.micro_batch * job.seq_len, CELLS) * CELLS


def cache(spec: ModelSpec, job: Job, sequences: Size, compute_capability: str | None) -> Part:
    """Keys and values of ``sequences`` sequences of the job's length, as the engine lays them out."""
    total: Size = 0
    for kv in kv_layers(spec, latent=True):
        total = total + _values(kv, job, sequences, compute_capability) * kv.layers
    size = kv_cache.stored_bytes(total, kv_cache.dtype(job))
    size = size + state_bytes(spec, kv_cache.dtype(job)) * sequences if _recurrent(job) else size
    unit = f"blocks of {BLOCK_TOKENS} tokens" if job.facts.engine == "vllm" else "cells of the whole context"
    words = f"{commas(sequences)} sequences × {commas(job.seq_len)} tokens in {unit}"
    return counted("kv cache", size, words, VLLM_SOURCE if job.facts.engine == "vllm" else kv_cache.SOURCE)


def _recurrent(job: Job) -> bool:
    return kv_cache.dtype(job) in BITS


def _values(kv: KvLayers, job: Job, sequences: Size, compute_capability: str | None) -> Size:
    """Values that one layer keeps."""
    if job.facts.engine == "llama.cpp":
        cells = ceil_div(sequences * job.seq_len, CELLS) * CELLS
        if kv.window is not None:
            # llama-kv-cache-iswa.cpp: window + n_ubatch cells a sequence, padded.
            cells = minimum(cells, ceil_div(sequences * kv.window + UBATCH, CELLS) * CELLS)
        return kv.values * cells
    kept: Size = job.seq_len
    more = 0
    if kv.window is not None:
        # kv_cache_interface.py SlidingWindowSpec.max_memory_usage_bytes: window − 1 + a step's tokens, and one block more.
        kept = minimum(job.seq_len, kv.window - 1 + batch_limits(job, compute_capability)[0])
        more = 1
    return kv.values * (ceil_div(kept, BLOCK_TOKENS) + more) * BLOCK_TOKENS * sequences


def budget(
    spec: ModelSpec, job: Job, total: Interval, usable: Interval, compute_capability: str | None
) -> Budget | None:
    """What the engine's budget leaves on a card whose CUDA total is ``total`` and that leaves ``usable`` to a job; None for
    libraries without one."""
    engine = job.facts.engine
    if engine is None or job.training:
        return None
    served = Served(spec, job, compute_capability)
    held, work = amount(served.weights.size_bytes), amount(served.work.size_bytes)
    if engine == "vllm":
        asked, other = int(total.likely * job.memory_utilization), OUTSIDE
    else:
        asked, other = usable.likely, Interval.exact(0)
    pool = Interval(
        low=max(0, asked - held - work - other.high),
        likely=max(0, asked - held - work - other.likely),
        high=max(0, asked - held - work - other.low),
    )
    one = amount(cache(spec, job, 1, compute_capability).size_bytes)
    sequences = pool.likely // one if one else 0
    block = BLOCK_TOKENS if engine == "vllm" else CELLS
    windowed = any(kv.window is not None for kv in kv_layers(spec, latent=True))
    tokens = sequences * job.seq_len if windowed or not one else _tokens(spec, job, pool.likely, block)
    return Budget(
        engine=engine,
        total_bytes=total.likely,
        requested_bytes=asked,
        weights_bytes=held,
        work_bytes=work,
        other_bytes=other.likely,
        pool=pool,
        block_tokens=block,
        tokens=tokens,
        sequences=sequences,
        sequence_bytes=one,
        starts=sequences >= 1,
        source=VLLM_SOURCE if engine == "vllm" else LLAMA_SOURCE,
    )


def _tokens(spec: ModelSpec, job: Job, pool_bytes: int, block: int) -> int:
    values = sum(kv.layers * kv.values for kv in kv_layers(spec, latent=True)) * block
    size = amount(kv_cache.stored_bytes(values, kv_cache.dtype(job)))
    return pool_bytes // size * block if size else 0
