"""What a model, a job and a card can't do together is asked back; what is slow is noted."""

import pytest

import loadmaster as lm
from loadmaster.errors import BadValueError
from loadmaster.render.plan import plan_text
from loadmaster.render.terminal import Look
from loadmaster.units import GIB

LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("google-bert/bert-base-uncased", {"task": "serve", "engine": "vllm"}, "generates text"),
        (LLAMA, {"engine": "vllm"}, "only serves"),
        (LLAMA, {"attention": "flash2", "gpu": "v100-sxm2-16gb"}, "compute capability 8.0"),
        (LLAMA, {"attention": "flash3", "gpu": "a100-sxm4-80gb"}, "compute capability 9.0"),
        (LLAMA, {"attention": "flash2", "gpu": "m3 max 64gb"}, "has none"),
    ],
)
def test_what_does_not_go_together_is_asked_back(model, words, said):
    with pytest.raises(BadValueError, match=said):
        lm.plan(model, **{"gpu": "rtx4090", **words})


def test_bfloat16_on_an_old_card_is_noted():
    words = {"model": "Qwen/Qwen2.5-0.5B", "task": "infer", "seq": 256}
    assert any("no bfloat16" in note for note in lm.plan(**words, gpu="t4").notes)
    for plan in (lm.plan(**words, gpu="t4", precision="fp16"), lm.plan(**words, gpu="rtx4090")):
        assert not any("bfloat16" in note for note in plan.notes)


def vllm(batch):
    return lm.plan(LLAMA, task="serve", engine="vllm", gpu="h100-sxm", batch=batch, seq=8192)


def test_vllm_takes_its_whole_budget_and_lets_sequences_wait():
    few, many = vllm(4), vllm(500)
    assert (few.verdict, many.verdict) == ("fits", "tight")
    # 0.9 of what CUDA sees on the card, whatever is asked of it.
    for plan in (few, many):
        share = 0.9 * plan.usable.visible_bytes.likely
        assert plan.ledger.peak.process.likely == pytest.approx(share, rel=1e-6)
        assert plan.ledger.peak.allocated.likely < plan.usable_bytes.likely
    # 8192 tokens × 32 layers × 2 × 8 heads × 128 values × 2 B are 1 GiB a sequence.
    assert few.budget.sequence_bytes == GIB
    text = " ".join(plan_text(many, Look(120)).split())
    assert f"{500 - many.budget.sequences} of 500 would wait" in text


def test_llama_cpp_makes_the_cache_of_all_sequences_at_once():
    plan = lm.plan(
        LLAMA, task="serve", engine="llama.cpp", quantization="Q4_K_M", gpu="rtx4090", batch=400, seq=8192
    )
    assert plan.verdict == "does_not_fit"
    assert "would not fit" in " ".join(plan_text(plan, Look(120)).split())


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_every_bound_of_the_peak_grows_with_the_batch(batch):
    words = {
        "optimizer": "paged_adamw_8bit",
        "checkpointing": "every:3",
        "seq": 512,
        "eval_batch": 8,
        "vram": "2000GiB",
    }
    less, more = (
        lm.plan("google/gemma-2-2b", **words, batch=b).ledger.peak.allocated for b in (batch, batch + 1)
    )
    assert less.low <= more.low
    assert less.likely <= more.likely
    assert less.high <= more.high


def test_a_dataset_in_ram_is_shared_with_workers_or_copied_by_each():
    words = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "rtx4090", "workers": 4}
    bare, held = lm.plan(**words), lm.plan(**words, dataset="20GiB")
    (data,) = (e for e in held.ledger.at("run", "ram") if e.component == "dataset")
    assert (data.bytes.low, data.bytes.likely, data.bytes.high) == (20 * GIB, 20 * GIB, 5 * 20 * GIB)
    assert held.ledger.ram.likely > bare.ledger.ram.likely
    assert held.ledger.peak == bare.ledger.peak
    with pytest.raises(BadValueError, match="20GiB"):
        lm.plan(**words, dataset="many")
