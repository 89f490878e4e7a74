"""Activations: what the layers keep for backward, and small tables that live through a step."""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div
from loadmaster.dtypes import itemsize
from loadmaster.jobs.job import Job
from loadmaster.memory.cost import CHECKPOINT, Cost
from loadmaster.memory.inventory import rest_dtype
from loadmaster.memory.parts import Census, Part, commas, counted
from loadmaster.models.spec import ModelSpec

SOURCE = (
    "saved tensors of each layer's operators (derivatives.yaml) in the order of transformers' modelling code"
)


def retained(groups: list[tuple[Cost, int]], *, offloaded: bool = False) -> Part:
    """What ``count`` layers of each cost hold together between their forward and their backward; ``offloaded``: inputs of
    checkpointed layers wait in host memory."""
    total: Size = 0
    census: Census = {}
    for cost, count in groups:
        total = total + _kept(cost, offloaded) * count
        for key, size in cost.retained_census.items():
            if not (offloaded and key == CHECKPOINT):
                census[key] = census.get(key, 0) + size * count

    def formula() -> str:
        terms = [
            f"{count} {'layer' if count == 1 else 'layers'} × {commas(_kept(cost, offloaded))} B"
            for cost, count in groups
            if count
        ]
        return " + ".join(terms) or "0"

    return Part("activations", total, formula, SOURCE, origin="modelled", census=census)


BLOCK = 128
"""torch/nn/attention/flex_attention.py _DEFAULT_SPARSE_BLOCK_SIZE."""


def _kept(cost: Cost, offloaded: bool) -> Size:
    return cost.retained - cost.checkpoint if offloaded else cost.retained


def rotary_buffers(spec: ModelSpec, job: Job, rotary: int) -> Part:
    """cos and sin of all positions as buffers of every layer, in older transformers (LlamaRotaryEmbedding.cos_cached); or
    AutoAWQ's complex64 factors of every layer for twice the generated tokens (fused/attn.py precompute_freqs_cis)."""
    if job.facts.rotary_tables == "complex":
        size = len(spec.decoder.layout) * job.new_tokens * rotary * 8
        return counted(
            "buffers", size, "layers × 2 × generated tokens × width / 2 × 8 B", "awq/modules/fused/attn.py"
        )
    layers = len(spec.decoder.layout) if job.facts.rotary_tables == "per layer" and rotary else 0
    positions = spec.max_positions or 0
    size = 2 * layers * positions * rotary * itemsize(job.precision.weights)
    words = f"2 × {layers} layers × {positions:,} positions × {rotary} × {itemsize(job.precision.weights)} B"
    return Part("buffers", size, lambda: words, "transformers before 4.43: rotary tables of each layer")


def inputs(spec: ModelSpec, job: Job, rotary: int, residual: str) -> Part:
    """Token ids, labels and mask (int64) of the batch, pictures and sounds in the format of the weights that read them, and
    rotary tables of one length."""
    tokens = job.micro_batch * job.seq_len
    ids = 3 * 8 * tokens if job.training else 8 * tokens
    tables = 2 * job.seq_len * rotary * itemsize(residual)
    # flex_attention's BlockMask: indices and counts of partial and full blocks, by queries and by keys.
    blocks = ceil_div(job.seq_len, BLOCK) if job.attention == "flex" else 0
    mask = 4 * 4 * (blocks * blocks + blocks)
    seen = sum(tower.input_values for tower in spec.towers) * itemsize(rest_dtype(job)) * job.micro_batch
    seen = seen * (job.images if spec.decoder.modality == "text" and spec.head is not None else 1)

    def formula() -> str:
        words = f"ids {commas(ids)} B + rotary tables {commas(tables)} B + block mask {commas(mask)} B"
        return (
            f"{words} + pictures or sounds {commas(seen)} B"
            if any(t.input_values for t in spec.towers)
            else words
        )

    return Part(
        "inputs",
        ids + tables + mask + seen,
        formula,
        "transformers' batch: input_ids, attention_mask, labels; LlamaRotaryEmbedding cos and sin",
    )
