"""What depends on the card's generation and on the library's version."""

import pytest

import loadmaster as lm

# Mixtral-8x7B: 32 layers of 8 experts of three 4096 × 14336 matrices, grouped-query attention with 8 of 32 heads.
EXPERTS = 32 * 8 * 3 * 4096 * 14336
ATTENTION = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
TABLES = 2 * 32000 * 4096
DOUBLE_QUANTISED = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes a value of nf4 with double quantisation: 4 bits, a byte for 64 values and 4 bytes for 256 of these."""


def weights_bytes(framework):
    plan = lm.plan(
        "mistralai/Mixtral-8x7B-v0.1",
        task="infer",
        quantization="nf4",
        gpu="h200",
        seq=512,
        framework=framework,
    )
    return sum(e.bytes.likely for e in plan.ledger.at("load") if e.component == "weights")


def test_4bit_loading_reaches_experts_before_transformers_5():
    packed = (EXPERTS + ATTENTION) * DOUBLE_QUANTISED + TABLES * 2
    assert weights_bytes("transformers 4.57") == pytest.approx(packed, rel=0.002)


def test_4bit_loading_passes_by_experts_in_transformers_5():
    as_they_are = EXPERTS * 2 + ATTENTION * DOUBLE_QUANTISED + TABLES * 2
    assert weights_bytes("transformers 5.0") == pytest.approx(as_they_are, rel=0.002)


def adapter_bytes(framework):
    plan = lm.plan(
        "mistralai/Mixtral-8x7B-v0.1", method="lora", rank=8, gpu="h200", seq=512, framework=framework
    )
    return sum(e.bytes.likely for e in plan.ledger.at("load") if e.component == "adapters")


def test_adapters_reach_experts_before_transformers_5():
    """PEFT's all-linear wraps every nn.Linear but the head: rank × (inputs + outputs) float32 values each. From 0.20 on it finds
    the experts again: down_proj as before, gate_up_proj with both ranks at both sides, and the router."""
    attention = 32 * 8 * (2 * (4096 + 4096) + 2 * (4096 + 1024)) * 4
    experts = 32 * 8 * 8 * 3 * (4096 + 14336) * 4
    assert adapter_bytes("transformers 5.0") == pytest.approx(attention, rel=0.002)
    assert adapter_bytes("transformers 4.57") == pytest.approx(attention + experts, rel=0.002)
    stacks = 32 * 8 * 8 * ((4096 + 14336) + 2 * (4096 + 2 * 14336)) * 4 + 32 * 8 * (4096 + 8) * 4
    assert adapter_bytes("transformers") == pytest.approx(attention + stacks, rel=0.002)


def attention(gpu, precision, task="infer"):
    plan = lm.plan("facebook/opt-1.3b", task=task, precision=precision, gpu=gpu, seq=2048)
    (said,) = (a.text for a in plan.ledger.assumptions if a.field == "attention")
    return said, plan.ledger.peak.allocated.likely


def test_flash_attention_needs_ampere():
    """sdp_utils.cpp: flash from 8.0 on; memory-efficient attention takes bfloat16 from 8.0 on and float16 on all."""
    assert "runs as flash" in attention("rtx3090", "bf16")[0]
    assert "runs as efficient" in attention("t4", "fp16")[0]
    assert "runs as math" in attention("t4", "bf16")[0]
    assert "runs as flash" in attention("mi300x", "bf16")[0]


def test_scores_written_out_take_what_they_take():
    """The math path holds heads × 2048² scores and their softmax in float32, 32 heads: 512 MiB each."""
    more = attention("t4", "bf16")[1] - attention("t4", "fp16")[1]
    assert more >= 2 * 32 * 2048 * 2048 * 4 * 0.9
