"""Changes: a job that each helps, and a near-miss that it must leave alone."""

import pytest

import loadmaster as lm
from loadmaster.errors import BadValueError
from loadmaster.jobs.changes import every
from loadmaster.jobs.make import make_job
from loadmaster.memory.passes import head_and_loss
from loadmaster.memory.timeline import moments
from loadmaster.models import read_model

MODEL = "meta-llama/Llama-3.2-1B"
CASES = {
    "cut_loss": ({"precision": "bf16"}, {"precision": "fp32"}),
    "optimizer_in_backward": (
        {"precision": "bf16", "checkpointing": "full", "loss": "cut", "optimizer": "sgd"},
        {"precision": "bf16", "grad_accumulation": 4},
    ),
    "offload_optimizer": ({"precision": "bf16"}, {"precision": "bf16", "optimizer_in_backward": True}),
    "optimizer_paged": ({"precision": "bf16", "optimizer": "adamw_8bit"}, {"precision": "bf16", "optimizer": "lion"}),
    "checkpointing": ({"precision": "bf16", "checkpointing": "selective"}, {"checkpointing": "full"}),
}  # fmt: skip


def peak(job) -> int:
    return max(int(m.total_bytes) for m in moments(read_model(MODEL), job, None, detail=False))


@pytest.mark.parametrize("name", CASES)
def test_it_helps_one_and_leaves_the_other(name):
    change = next(c for c in every() if name == c.NAME)
    helped, left = (make_job(batch=4, seq=1024, **words) for words in CASES[name])
    assert change.applies(helped)
    assert peak(change.apply(helped)) < peak(helped)
    assert not change.applies(left)
    assert not change.applies(change.apply(helped))
    assert change.text(helped)


def test_cut_loss_has_no_logits():
    """Between forward and backward it holds a logsumexp, a row number (int32) and a label (int64) a token and a mean a word."""
    spec = read_model(MODEL)
    assert spec.head is not None
    words = {"precision": "bf16", "method": "lora", "batch": 1, "seq": 4096}
    kept = {}
    for loss in ("cut", "fused", "native"):
        cost = head_and_loss(spec, make_job(loss=loss, **words), detail=True)
        tensors = {name: size for (tag, name), size in cost.retained_census.items() if tag == "logits"}
        kept[loss] = sum(size for name, size in tensors.items() if "input" not in name)
    assert kept["native"] >= 2 * 4096 * spec.head.vocab
    assert kept["cut"] == pytest.approx(4096 * (4 + 4 + 8) + 4 * spec.head.vocab, abs=4 * 512)
    with pytest.raises(BadValueError, match="16-bit"):
        make_job(precision="fp32", loss="cut")


def test_paged_states_are_shown_and_not_counted():
    import loadmaster as lm

    plan = lm.plan(MODEL, vram="24GiB", precision="bf16", optimizer="paged_adamw", seq=128)
    paged = next(e for e in plan.ledger.entries if e.tier == "managed")
    # Two float32 moments of each of the model's 1,235,814,400 values, norms (33 of 2048) too small to be paged.
    values = 1_235_814_400 - 33 * 2048
    assert paged.bytes.likely == 8 * values
    peak = plan.ledger.peak
    assert peak.process.high - peak.process.low >= paged.bytes.likely
    assert all(e.component != "paged states" for e in plan.ledger.at(peak.phase))
    assert any("missing from allocated" in a.text for a in plan.ledger.assumptions)


def test_an_evaluation_batch_that_is_too_large_is_halved_until_it_fits():
    """8 × 2048 tokens of 152,064 words: bfloat16 logits, their float32 copy and log_softmax, 10 bytes each, are 23.2 GiB."""
    words = {"method": "lora", "seq": 2048, "checkpointing": "full", "gpu": "rtx4090"}
    assert lm.plan("Qwen/Qwen2.5-7B", **words).verdict == "fits"
    plan = lm.plan("Qwen/Qwen2.5-7B", **words, eval_batch=8)
    assert (plan.verdict, plan.ledger.peak.phase) == ("does_not_fit", "evaluate")
    (logits,) = (e for e in plan.ledger.at("evaluate") if e.component == "logits")
    assert logits.bytes.likely == pytest.approx(8 * 2048 * 152_064 * 10, rel=0.01)
    halved = next(rung for rung in plan.ladder if rung.change == "smaller_eval_batch")
    assert (halved.text, halved.numerics) == ("evaluation batch 4", "identical")
    assert plan.fitting is not None
