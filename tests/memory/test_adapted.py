"""Which parts of a mixture of experts LoRA adapts: PEFT's own wrapper on small models, and what the copies of weights take."""

from __future__ import annotations

import json
from collections import Counter
from math import prod

import pytest

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.programs.simulate import simulate
from loadmaster.errors import LoadmasterError
from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.memory.adapted import as_adapted
from loadmaster.memory.inventory import adapters
from loadmaster.models.readers import config_json

SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "hidden_act": "silu", "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
MLA = {
    "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
FAMILIES = {
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4},
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 4,
        "shared_expert_intermediate_size": 64,
    },
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "n_group": 1, "topk_group": 1, **MLA},
}


def fields(model_type: str, **changes: object) -> dict[str, object]:
    return {**SHAPE, "model_type": model_type, **FAMILIES[model_type], **changes}


WIDE = fields("qwen3_moe", hidden_size=256, moe_intermediate_size=256, num_experts=128, num_hidden_layers=3)


def of_peft(given: dict[str, object], targets: str | list[str]) -> Counter[tuple[int, ...]]:
    """Shapes of the adapter's parameters that PEFT makes."""
    import peft
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**given)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    return Counter(tuple(param.shape) for name, param in wrapped.named_parameters() if "lora_" in name)


def ours(given: dict[str, object], targets: str) -> Counter[tuple[int, ...]]:
    spec = config_json.from_fields(given, "m")
    found: Counter[tuple[int, ...]] = Counter()
    for held in adapters(spec, make_job(method="lora", rank=4, targets=targets)):
        assert prod(held.sides) == held.elements
        found[tuple(int(side) for side in held.sides)] += held.count
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "q_proj,down_proj", "gate,o_proj"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_adapters_are_those_that_peft_makes(model_type: str, targets: str) -> None:
    if targets.startswith("gate") and model_type == "qwen2_moe":
        pytest.skip("PEFT finds no layer of its kinds there")
    given = fields(model_type)
    asked = targets if targets == "all-linear" else targets.split(",")
    assert ours(given, targets) == of_peft(given, asked)


@pytest.mark.parametrize("framework", ["transformers 4.57", "transformers 5.0"])
def test_versions_before_it_adapt_modules_alone(framework: str) -> None:
    spec = config_json.from_fields(fields("qwen3_moe"), "m")
    job = make_job(method="lora", rank=4, framework=framework)
    assert as_adapted(spec, job) is job


def test_a_dry_run_of_a_version_before_it_leaves_experts_alone() -> None:
    job = make_job(method="lora", seq=128, framework="transformers 5.0")
    closed = predict(config_json.from_fields(WIDE, "m"), job, compute_capability="8.0").peak.allocated.likely
    assert closed == pytest.approx(simulate(WIDE, "m", job, Card()).peak_allocated_bytes, rel=0.01)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_copies_of_experts_are_counted(method: str, checkpointing: str) -> None:
    """128 experts of 256 × 256 in three projections: 48 MiB a layer in bfloat16, and once more where adapters are added in."""
    job = make_job(method=method, seq=128, checkpointing=checkpointing)
    closed = predict(config_json.from_fields(WIDE, "m"), job, compute_capability="8.0").peak.allocated.likely
    assert closed == pytest.approx(simulate(WIDE, "m", job, Card()).peak_allocated_bytes, rel=0.01)


def said(job_words: dict[str, object]) -> str:
    spec = config_json.from_fields(json.loads(json.dumps(fields("qwen3_moe"))), "m")
    return " ".join(predict(spec, make_job(seq=64, **job_words)).warnings)


def test_a_plan_says_what_lora_on_experts_takes() -> None:
    """Two layers of 4 experts × 3 × 64 × 32 values × 2 B = 48 KiB each."""
    assert "96.0 KiB kept for backward" in said({"method": "lora"})
    assert "48.0 KiB of a layer at a time" in said({"method": "lora", "checkpointing": "full"})
    assert "experts" not in said({"method": "lora", "targets": "q_proj,v_proj"})
    assert "refuses dropout" in said({"method": "lora", "lora_dropout": 0.1})
    assert "refuses gate_proj alone" in said({"method": "lora", "targets": "q_proj,gate_proj"})


def test_a_router_that_is_a_linear_layer_stops_all_linear() -> None:
    """PhimoeTopKRouter is a torch.nn.Linear whose forward gives two tensors: torch stops in PEFT's wrapper."""
    given = {**fields("mixtral"), "model_type": "phimoe", "architectures": ["PhimoeForCausalLM"]}
    spec = config_json.from_fields(given, "m")
    job = make_job(method="lora", seq=64)
    assert "the router" in " ".join(predict(spec, job).warnings)
    with pytest.raises(LoadmasterError, match="tuple"):
        simulate(given, "m", job, Card())
    named = make_job(method="lora", seq=64, targets="q_proj,v_proj")
    assert "the router" not in " ".join(predict(spec, named).warnings)


ROUTED = {
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"num_experts": 8},
    "deepseek_v2": {"n_routed_experts": 8},
}


@pytest.mark.parametrize(
    "words", [{"task": "infer"}, {"method": "lora", "targets": "q_proj,o_proj"}], ids=["infer", "lora"]
)
@pytest.mark.parametrize("model_type", ROUTED)
def test_routed_outputs_are_what_a_dry_run_counts(model_type: str, words: dict[str, object]) -> None:
    """Mixtral's and DeepSeek's routing weights stay in float32, and weight the experts' outputs so; Qwen 3 casts them."""
    given = fields(model_type, hidden_size=512, **ROUTED[model_type])
    job = make_job(seq=4096, loss="fused", **words)
    closed = predict(config_json.from_fields(given, "m"), job, compute_capability="8.0").peak.allocated.likely
    assert closed == pytest.approx(simulate(given, "m", job, Card()).peak_allocated_bytes, rel=0.04)
