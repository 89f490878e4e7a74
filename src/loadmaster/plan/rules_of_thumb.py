"""Rules that people pass around, worked out for a plan, and by which components each is off.

- training: parameters × (2 + 2 + 4) bytes, for weights, gradients and Adam's states in half precision
- inference: weights in half precision × 1.2
- RAM: the larger of 2 × GPU memory and 1.5 × dataset
- largest batch: (GPU memory − parameters) / (one sample × 5)
"""

from __future__ import annotations

from loadmaster.jobs.job import Job
from loadmaster.jobs.make import LIMITS
from loadmaster.memory.components.host import batch_bytes
from loadmaster.models.parameters import parameter_count
from loadmaster.plan.plan import Plan
from loadmaster.plan.search import Search
from loadmaster.records import Record, replace

WEIGHT_BYTES, GRADIENT_BYTES, STATE_BYTES = 2, 2, 4
"""What the training rule counts for each parameter."""
LARGEST_BATCH = LIMITS["micro_batch"]


class Difference(Record, kw_only=True):
    """``bytes`` that the ledger has and the rule lacks for a component; negative: the rule counts too much."""

    component: str
    bytes: int


class Rule(Record, kw_only=True):
    """A rule with its numbers: what it says and what the ledger says, both in ``unit``. Differences add up to the gap
    where the unit is bytes and both count the same thing; ``remark`` says what else is to be said."""

    name: str
    formula: str
    unit: str
    says: int
    ledger: int
    differences: tuple[Difference, ...] = ()
    remark: str = ""
    source: str = ""


def rules_of_thumb(plan: Plan) -> tuple[Rule, ...]:
    """The rules that are said about such a job."""
    count = parameter_count(plan.model)
    rules = [_training(plan, count) if plan.job.training else _inference(plan, count), _ram(plan)]
    if plan.job.training and plan.usable is not None and plan.device is not None:
        rules.append(_batch(plan, count))
    return tuple(rules)


def _training(plan: Plan, count: int) -> Rule:
    counted = {
        "weights": WEIGHT_BYTES * count,
        "gradients": GRADIENT_BYTES * count,
        "optimizer states": STATE_BYTES * count,
    }
    return Rule(
        name="training",
        formula=f"{count:,} parameters × ({WEIGHT_BYTES} + {GRADIENT_BYTES} + {STATE_BYTES}) B",
        unit="bytes",
        says=sum(counted.values()),
        ledger=plan.ledger.peak.allocated.likely,
        differences=differences(plan, counted),
        remark="it knows neither the length nor the batch, and no moment: gradients and activations peak at different ones",
    )


def _inference(plan: Plan, count: int) -> Rule:
    weights = WEIGHT_BYTES * count
    said = weights * 12 // 10
    return Rule(
        name="inference",
        formula=f"{count:,} parameters × {WEIGHT_BYTES} B × 1.2",
        unit="bytes",
        says=said,
        ledger=plan.ledger.peak.allocated.likely,
        differences=differences(plan, {"weights": weights, "a fifth for everything else": said - weights}),
        remark="the KV cache grows with batch and length, not with the weights",
    )


def differences(plan: Plan, counted: dict[str, int]) -> tuple[Difference, ...]:
    """Ledger minus rule for each component of the peak, largest first."""
    gaps = {name: -size for name, size in counted.items()}
    for entry in plan.ledger.at(plan.ledger.peak.phase):
        gaps[entry.component] = gaps.get(entry.component, 0) + entry.bytes.likely
    found = [Difference(component=name, bytes=size) for name, size in gaps.items() if size]
    return tuple(sorted(found, key=lambda difference: -abs(difference.bytes)))


def _ram(plan: Plan) -> Rule:
    if plan.device is not None and plan.usable is not None:
        size, what = plan.usable.visible_bytes.likely, "the card's memory"
    else:
        size, what = plan.ledger.peak.process.likely, "GPU memory needed"
    dataset = plan.job.loader.dataset_bytes
    second = f"1.5 × {dataset:,} B of data" if dataset else "no dataset in RAM"
    return Rule(
        name="RAM",
        formula=f"max(2 × {size:,} B ({what}), {second})",
        unit="bytes",
        says=max(2 * size, dataset * 3 // 2),
        ledger=plan.ledger.ram.likely,
        remark="RAM goes by how the model is loaded, by the data loader's workers and by saving",
    )


def _batch(plan: Plan, count: int) -> Rule:
    if plan.usable is None or plan.device is None:
        raise AssertionError("the rule needs a card")
    size, sample = plan.usable.visible_bytes.likely, batch_bytes(replace(plan.job, micro_batch=1))
    if not isinstance(sample, int):
        raise AssertionError("one job has one size")
    weights = WEIGHT_BYTES * count
    search = Search(plan.model, plan.usable, plan.device)
    return Rule(
        name="largest batch",
        formula=f"({size:,} B − {weights:,} B) / ({sample:,} B × 5)",
        unit="sequences",
        says=max(0, size - weights) // (5 * sample),
        ledger=largest_batch(search, plan.job),
        remark="a sample's bytes are those of its token ids; what a sample costs is its activations and logits",
    )


def largest_batch(search: Search, job: Job) -> int:
    """The largest micro-batch whose likely allocated bytes fit the card; 0 when not even one sequence does."""

    def fits(batch: int) -> bool:
        return search.peak_bytes(replace(job, micro_batch=batch)) <= search.limit_bytes

    if not fits(1):
        return 0
    good, bad = 1, 2
    while bad <= LARGEST_BATCH and fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
