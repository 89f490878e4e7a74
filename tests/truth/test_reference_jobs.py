"""Four jobs whose peak is known, in allocated bytes, each within 3 %."""

import pytest

from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.models import read_model

GIB = 2**30
JOBS = {
    "Llama-2-7B, fp32 weights, bf16 autocast": (
        "meta-llama/Llama-2-7b-hf",
        {"precision": "amp", "batch": 1, "seq": 2048, "optimizer_implementation": "foreach"},
        125.5,
    ),
    "Llama-2-7B, all in bf16": (
        "meta-llama/Llama-2-7b-hf",
        {"precision": "bf16", "batch": 1, "seq": 2048, "optimizer_implementation": "foreach"},
        62.8,
    ),
    "Llama-3.1-8B, LoRA r=8 on all linear layers, checkpointing": (
        "meta-llama/Llama-3.1-8B",
        {"method": "lora", "rank": 8, "precision": "bf16", "batch": 2, "seq": 2048, "checkpointing": "full"},
        22.1,
    ),
    "Llama-3.1-8B, 8 × 8192 prefilled at once": (
        "meta-llama/Llama-3.1-8B",
        {"task": "infer", "precision": "bf16", "batch": 8, "seq": 8192, "logits": "last"},
        30.2,
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_known_peaks(name):
    model, words, expected_gib = JOBS[name]
    ledger = predict(read_model(model), make_job(**words))
    assert ledger.peak.allocated.likely / GIB == pytest.approx(expected_gib, rel=0.03)


def test_weights_and_cache_of_the_prefilled_job():
    model, words, _ = JOBS["Llama-3.1-8B, 8 × 8192 prefilled at once"]
    ledger = predict(read_model(model), make_job(**words))
    parts = {e.component: e.bytes.likely for e in ledger.at("prefill")}
    assert (parts["weights"] + parts["kv cache"]) / GIB == pytest.approx(22.96, rel=0.005)
