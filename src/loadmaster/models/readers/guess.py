"""A network of which only the number of parameters is known: a Llama-like one, shaped like catalogue models near it."""

from __future__ import annotations

import math

from loadmaster.errors import BadValueError
from loadmaster.models.builders import Shape, attention, gated_mlp, pre_norms, rms
from loadmaster.models.parameters import parameter_count
from loadmaster.models.readers import catalogue
from loadmaster.models.spec import Block, Embedding, Head, ModelSpec, Tower
from loadmaster.records import replace
from loadmaster.units import format_count, parse_count

LADDER = (
    "EleutherAI/pythia-70m", "EleutherAI/pythia-160m", "HuggingFaceTB/SmolLM2-360M", "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-2-13b-hf", "01-ai/Yi-34B",
    "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-405B",
)  # fmt: skip
"""Dense catalogue models, small to large, between which depth and width are interpolated."""
LEAST, MOST = 10**6, 10**13
HEAD = 128


def read(text: str) -> ModelSpec:
    """The assumed ModelSpec for a count such as ``7B``; raises BadValueError for a count that is none."""
    try:
        wanted = parse_count(text)
    except ValueError:
        raise BadValueError("params", text[:40], "a count such as 7B, 350M or 7000000000") from None
    if not LEAST <= wanted <= MOST:
        raise BadValueError(
            "params", text[:40], f"a count from {format_count(LEAST)} to {format_count(MOST)}"
        )
    shape, vocab, tied = _shape(wanted)
    spec = _spec(wanted, shape, vocab, tied)
    off = parameter_count(spec) - wanted
    note = (
        f"a Llama-like network: {shape.layers} layers, width {shape.hidden}, {shape.heads} heads of {shape.head_dim}, "
        f"{shape.kv_heads} key-value heads, feed-forward {shape.width}, vocabulary {vocab} "
        f"({'tied' if tied else 'untied'} head), {off / wanted:+.1%} from the count asked for"
    )
    return replace(spec, assumed=(note,))


def _shape(wanted: int) -> tuple[Shape, int, bool]:
    ladder = []
    for name in LADDER:
        spec = catalogue.read(name)
        table = spec.decoder.embeddings[0].rows
        ladder.append(
            (math.log(parameter_count(spec)), len(spec.decoder.layout), spec.decoder.hidden, table, spec)
        )
    target = math.log(wanted)
    upper = next((index for index, rung in enumerate(ladder) if rung[0] >= target), len(ladder) - 1)
    low, high = ladder[max(0, upper - 1)], ladder[max(1, upper)]
    part = (target - low[0]) / (high[0] - low[0])
    nearest = low if abs(target - low[0]) < abs(high[0] - target) else high
    layers = max(1, round(math.exp(_between(math.log(low[1]), math.log(high[1]), part))))
    width = math.exp(_between(math.log(low[2]), math.log(high[2]), part))
    size = HEAD if width >= 1536 else HEAD // 2
    # Heads come in eights from eight on, so that eight key-value heads divide them.
    step = size * 8 if width >= 6 * size else size
    hidden = max(step, round(width / step) * step)
    heads = hidden // size
    groups = max(group for group in (8, 4, 2, 1) if heads % group == 0)
    tied = bool(nearest[4].head and nearest[4].head.tied)
    # A vocabulary never takes more than a third of a small network.
    vocab = min(nearest[3], max(256, wanted // (3 * hidden)))
    tables = vocab * hidden * (1 if tied else 2)
    each = 2 * hidden * hidden + 2 * hidden * groups * size + 2 * hidden
    if wanted - tables > layers * (each + 15 * hidden * hidden):
        # A small network gets more layers before its feed-forward grows past five widths.
        layers = max(1, round((wanted - tables) / (each + 12 * hidden * hidden)))
    left = (wanted - tables - hidden) // layers - each
    ffn = max(64, round(left / (3 * hidden) / 64) * 64) if left > 0 else 64
    shape = Shape(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=groups,
        head_dim=size,
        width=ffn,
        activation="silu",
        vocab=vocab,
    )
    return shape, vocab, tied


def _between(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def _spec(wanted: int, of: Shape, vocab: int, tied: bool) -> ModelSpec:
    block = Block(
        mixer=attention(of),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=pre_norms(of.hidden),
    )
    tower = Tower(
        name="decoder",
        hidden=of.hidden,
        prefix="model.layers",
        blocks=(block,),
        layout=(0,) * of.layers,
        embeddings=(Embedding(name="model.embed_tokens", role="token", rows=vocab, width=of.hidden),),
        norms=(("final", rms("model.norm", of.hidden)),),
    )
    return ModelSpec(
        name=f"a network of {format_count(wanted)} parameters",
        model_type="assumed",
        towers=(tower,),
        head=Head(vocab=vocab, inputs=of.hidden, tied=tied),
        published_parameters=wanted,
        origin="--params",
        exact=False,
    )
