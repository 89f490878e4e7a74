"""What ``--freeze`` leaves alone, beside torch: a tied output projection is the token table, one parameter."""

from __future__ import annotations

import pytest

from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.memory.inventory import trained
from loadmaster.models.readers import config_json

FIELDS = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024,
}  # fmt: skip


def of_torch(part: str, *, tied: bool) -> int:
    import torch
    import transformers

    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**FIELDS, tie_word_embeddings=tied)
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    found = model.get_output_embeddings() if part == "head" else model.get_input_embeddings()
    found.requires_grad_(False)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("part", ["head", "embeddings"])
def test_trained_values_are_those_of_torch(part: str, tied: bool) -> None:
    spec = config_json.from_fields({**FIELDS, "tie_word_embeddings": tied}, "m")
    job = make_job(freeze=part)
    assert sum(h.elements * h.count for h in trained(spec, job)) == of_torch(part, tied=tied)
    (said,) = (a.text for a in predict(spec, job).assumptions if a.field == "frozen")
    assert ("one parameter" in said) == tied


def test_kinds_of_layers_that_a_depth_has_none_of() -> None:
    """Vision layers with full attention are named by their number; fewer layers than that have none."""
    fields = {
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {**FIELDS, "model_type": "qwen2_5_vl_text"},
        "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64,
                          "fullatt_block_indexes": [7]},
    }  # fmt: skip
    spec = config_json.from_fields(fields, "m")
    for words in ({}, {"method": "lora"}, {"method": "qlora"}, {"task": "infer"}):
        assert predict(spec, make_job(seq=2048, **words)).peak.reserved.likely > 0
