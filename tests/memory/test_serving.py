"""Servers' budgets against their logs and their formulas."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.errors import BadValueError
from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.memory.serving import Budget, budget, compute_buffer, profile_run
from loadmaster.models import read_model
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval
from loadmaster.units import GIB, MIB

H100 = Interval.exact(int(79.18 * GIB))


@cache
def spec(name: str) -> ModelSpec:
    return read_model(name)


def pool(name: str, total: Interval = H100, capability: str | None = "9.0", **how: Any) -> Budget:
    job = make_job(**{"task": "serve", "framework": "vllm", "seq": 16_000, **how})
    found = budget(spec(name), job, total, total, capability)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "weights", "activation", "left"),
    [("meta-llama/Llama-3.1-8B", 14.99, 4.76, 51.38), ("Qwen/Qwen3-32B", 61.03, 5.64, 4.45)],
)
def test_vllm_on_an_h100(name: str, weights: float, activation: float, left: float) -> None:
    """Logs of vLLM 0.11 on an H100 of 79.18 GiB with gpu_memory_utilization 0.90 and max-model-len 16000."""
    found = pool(name)
    assert found.weights_bytes == pytest.approx(weights * GIB, rel=0.005)
    assert found.work_bytes == pytest.approx(activation * GIB, rel=0.01)
    assert found.pool.likely == pytest.approx(left * GIB, abs=0.06 * GIB)
    assert found.pool.low <= left * GIB <= found.pool.high + 0.06 * GIB


def test_a_pool_in_tokens() -> None:
    """28.20 GiB hold 184,832 tokens of Mistral Small's 163,840 B (log of vLLM 0.11): 40 layers × 2 × 8 × 128 × 2 B."""
    found = pool("meta-llama/Llama-3.1-8B")
    a_token = 32 * 2 * 8 * 128 * 2
    assert found.tokens == found.pool.likely // (16 * a_token) * 16
    assert found.sequence_bytes == 16_000 * a_token
    assert found.sequences == found.pool.likely // (16_000 * a_token)


def test_blocks_are_whole() -> None:
    assert (
        pool("meta-llama/Llama-3.1-8B", seq=17).sequence_bytes
        == pool("meta-llama/Llama-3.1-8B", seq=32).sequence_bytes
    )


def test_sliding_windows_keep_a_window_and_a_step() -> None:
    """gpt-oss-20b: 12 of 24 layers see 128 tokens; vLLM keeps window − 1 + tokens of a step, in blocks, and one more."""
    found = pool("openai/gpt-oss-20b", quantization="mxfp4", prefill_chunk=2048)
    a_layer = 2 * 8 * 64 * 2
    windowed = (-(-(128 - 1 + 2048) // 16) + 1) * 16
    assert found.sequence_bytes == 12 * a_layer * (16_000 + windowed)


def test_the_sampler_is_what_the_profile_run_peaks_at() -> None:
    """38 bytes a logit of all sequences: few sequences, and the forward pass is larger."""
    many = profile_run(spec("Qwen/Qwen3-32B"), make_job(task="serve", framework="vllm"), "9.0")
    few = profile_run(
        spec("Qwen/Qwen3-32B"), make_job(task="serve", framework="vllm", max_sequences=8), "9.0"
    )
    assert int(many.size_bytes) - (8192 * 5120 * 2 + 32 * MIB) == 38 * 1024 * 151_936
    assert few.size_bytes < many.size_bytes


def test_smaller_cards_have_smaller_defaults() -> None:
    card = Interval.exact(24 * GIB)
    found = pool("meta-llama/Llama-3.1-8B", card, "8.9")
    assert found.work_bytes < 1.5 * GIB
    assert found.requested_bytes == int(24 * GIB * 0.9)


@pytest.mark.parametrize(
    ("name", "seq", "attention", "logged"),
    [
        ("meta-llama/Llama-3.1-8B", 2048, "eager", 258.50),
        ("meta-llama/Llama-3.1-8B", 8192, "sdpa", 258.50),
        ("meta-llama/Llama-3.1-8B", 8192, "eager", 560.00),
        ("meta-llama/Llama-2-7b-hf", 2048, "eager", 164.00),
        ("meta-llama/Llama-2-7b-hf", 2048, "sdpa", 70.50),
    ],
)
def test_compute_buffers_as_llama_cpp_logs_them(name: str, seq: int, attention: str, logged: float) -> None:
    """``CUDA0 compute buffer size`` in logs of llama.cpp (Llama 3 8B and Llama 2 7B, n_ubatch 512)."""
    job = make_job(task="serve", framework="llama.cpp", seq=seq, attention=attention)
    assert compute_buffer(spec(name), job).size_bytes == logged * MIB


def test_caches_of_llama_cpp() -> None:
    """``KV self size = 256.00 MiB, K (f16): 128.00 MiB, V (f16): 128.00 MiB`` of Llama 3 8B at 2048 tokens; q8_0 takes 34
    bytes for 32 values."""

    def cache_of(**how: Any) -> int:
        ledger = predict(
            spec("meta-llama/Llama-3.1-8B"), make_job(task="serve", framework="llama.cpp", seq=2048, **how)
        )
        return next(e.bytes.likely for e in ledger.at("decode") if e.component == "kv cache")

    assert cache_of() == 256 * MIB
    assert cache_of(batch=4) == 4 * 256 * MIB
    assert cache_of(kv_dtype="q8_0") == 256 * MIB * 34 // 64
    assert cache_of(kv_dtype="q4_0") == 256 * MIB * 18 // 64


# The plan


def test_formats_of_llama_cpps_cache_are_its_own() -> None:
    with pytest.raises(BadValueError, match=r"llama\.cpp"):
        make_job(task="serve", framework="vllm", kv_dtype="q8_0")
    plan = lm.plan(
        "meta-llama/Llama-3.1-8B", vram="8GiB", task="serve", framework="llama.cpp", quantization="Q4_K_M", seq=131_072,
        kv_dtype="q8_0",
    )  # fmt: skip
    assert plan.verdict == "does_not_fit"
    assert [rung.change for rung in plan.ladder if rung.change == "kv_fp8"] == []


def test_a_server_that_would_not_start_does_not_fit() -> None:
    plan = lm.plan("meta-llama/Llama-3.1-8B", vram="24GiB", task="serve", framework="vllm", seq=60_000)
    assert plan.budget is not None
    assert not plan.budget.starts
    assert plan.verdict == "does_not_fit"
    assert plan.margin_bytes == plan.budget.pool.likely - plan.budget.sequence_bytes < 0
    shorter = lm.plan("meta-llama/Llama-3.1-8B", vram="24GiB", task="serve", framework="vllm", seq=8192)
    assert shorter.budget is not None
    assert shorter.budget.starts
    assert shorter.verdict == "fits"


def test_a_library_without_a_budget_has_none() -> None:
    assert lm.plan("meta-llama/Llama-3.2-1B", vram="24GiB", task="serve").budget is None


@pytest.mark.parametrize("share", [0, 1.5, -1, True, "much"])
def test_a_share_of_the_card_is_between_0_and_1(share: object) -> None:
    with pytest.raises(BadValueError):
        make_job(task="serve", framework="vllm", memory_utilization=share)


@settings(max_examples=30)
@given(
    st.sampled_from(["vllm", "llama.cpp"]),
    st.sampled_from(["meta-llama/Llama-3.2-1B", "google/gemma-2-2b", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite"]),
    st.integers(4, 140), st.integers(1, 100), st.integers(1, 50_000),
)  # fmt: skip
def test_budgets_add_up_and_grow_with_the_card(
    engine: str, name: str, size: int, more: int, seq: int
) -> None:
    found = [
        pool(name, Interval.exact(g * GIB), "8.9", framework=engine, seq=seq) for g in (size, size + more)
    ]
    for one in found:
        left = one.requested_bytes - one.weights_bytes - one.work_bytes - one.other_bytes
        assert one.pool.likely == max(0, left)
        assert 0 <= one.pool.low <= one.pool.likely <= one.pool.high
        assert one.sequences * one.sequence_bytes <= one.pool.likely
        assert one.starts == (one.sequences >= 1)
    assert found[0].pool.likely <= found[1].pool.likely
    assert found[0].tokens <= found[1].tokens
