"""Published formulas: what they say of jobs that the tools themselves were run on, and differences that add up."""

import pytest

import loadmaster as lm
from loadmaster.plan.published_rules import compare_rules
from loadmaster.units import GIB


def said(**job):
    plan = lm.plan("meta-llama/Llama-2-7b-hf", vram="141GiB", seq=2048, **job)
    return plan, {rule.name: rule for rule in compare_rules(plan)}


def test_tools_said_the_same_of_llama_2_7b():
    """deepspeed 0.19.8's ZeRO-2 estimator on one GPU prints 125.5 GiB; accelerate 1.15.0 49.2 GiB (float16) and 98.5
    (float32) without the 131,072,000 parameters of the output projection."""
    _, rules = said()
    assert rules["DeepSpeed ZeRO-2 estimator, one GPU"].says / GIB == pytest.approx(125.5, abs=0.05)
    head = 131_072_000
    assert (rules["accelerate estimate-memory"].says - 8 * head) / GIB == pytest.approx(49.2, abs=0.05)
    _, rules = said(precision="fp32")
    assert (rules["accelerate estimate-memory"].says - 16 * head) / GIB == pytest.approx(98.5, abs=0.05)


def test_activation_formulas_are_the_papers():
    """arXiv:2205.05198: sbh(34 + 5as/h) bytes a layer, 34sbh without the attention core, 2sbh fully recomputed."""
    sbh, states = 2048 * 4096, 18 * 6_738_415_616
    wanted = {
        ("eager", "none"): 32 * sbh * 34 + 32 * 5 * 32 * 2048 * 2048,
        ("sdpa", "none"): 32 * sbh * 34,
        ("sdpa", "full"): 32 * sbh * 2,
    }
    for (attention, checkpointing), activations in wanted.items():
        _, rules = said(attention=attention, checkpointing=checkpointing)
        assert rules["Megatron-LM"].says == states + activations


@pytest.mark.parametrize(
    "job",
    [
        {}, {"method": "lora"}, {"method": "qlora"}, {"precision": "megatron"}, {"optimizer": "paged_adamw_8bit"},
        {"task": "infer"},
    ],
)  # fmt: skip
def test_differences_add_up_to_the_gap(job):
    plan, rules = said(**job)
    assert len(rules) > 2
    for rule in rules.values():
        assert rule.ledger == plan.ledger.peak.allocated.likely
        assert sum(d.bytes for d in rule.differences) == rule.ledger - rule.says
        assert rule.says > 0


def test_weights_and_cache_of_all_heads():
    """Llama-2-7B has as many key heads as heads, so that the formula's cache is the real one: 0.5 MiB a token."""
    plan, rules = said(task="infer", batch=4)
    rule = rules["weights + KV cache of all heads"]
    assert rule.says - 2 * 6_738_415_616 == 4 * 2048 * 2**19
    cache = next(e for e in plan.ledger.at(plan.ledger.peak.phase) if e.component == "kv cache")
    assert cache.bytes.likely == 4 * 2048 * 2**19
