"""The dry run and the closed form are two ways to the same figure: allocated peaks of the same job, model by model.

``scripts/agreement.py`` does this for the whole catalogue. Models are cut to a few layers in both.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.programs.simulate import simulate
from loadmaster.dryrun.programs.sources import fields_of
from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.models.readers import config_json

_place = Path(__file__).parents[2] / "scripts" / "agreement.py"
_spec = importlib.util.spec_from_file_location("agreement", _place)
assert _spec is not None
assert _spec.loader is not None
agreement = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(agreement)

WORST = 0.06
SEQ = 1024


def difference(name: str, words: dict[str, Any]) -> float:
    fields, full_name = fields_of(name)
    fields = agreement.cut(fields, 2)
    spec = config_json.from_fields(fields, full_name)
    job = make_job(seq=agreement.longest(spec, fields, SEQ), **words)
    closed = predict(spec, job, compute_capability="8.0").peak.allocated.likely
    return closed / simulate(agreement.as_counted(fields), full_name, job, Card()).peak_allocated_bytes - 1


FULL: dict[str, Any] = {"precision": "bf16"}
LORA: dict[str, Any] = {"method": "lora", "checkpointing": "full"}
QLORA: dict[str, Any] = {"method": "qlora", "checkpointing": "full", "loss": "fused"}
INFERENCE: dict[str, Any] = {"task": "infer", "new_tokens": 128}


@pytest.mark.parametrize("words", [FULL, LORA, QLORA, INFERENCE], ids=["full", "lora", "qlora", "inference"])
@pytest.mark.parametrize("name", ["meta-llama/Llama-2-7b-hf", "Qwen/Qwen2.5-0.5B"])
def test_peaks_agree(name: str, words: dict[str, Any]) -> None:
    assert abs(difference(name, words)) <= WORST


FAMILIES = (
    "EleutherAI/gpt-j-6b", "EleutherAI/pythia-160m", "HuggingFaceTB/SmolLM3-3B", "Qwen/Qwen3-0.6B",
    "allenai/OLMo-2-0425-1B", "bigscience/bloom-560m", "facebook/opt-125m", "google/gemma-2-2b", "google/gemma-2b",
    "google/gemma-3-1b-it", "meta-llama/Llama-3.1-8B", "microsoft/Phi-3-mini-4k-instruct", "microsoft/phi-2",
    "mistralai/Mistral-7B-v0.1", "openai-community/gpt2", "tiiuae/falcon-7b", "zai-org/GLM-4-9B-0414",
    "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B",
)  # fmt: skip


JOBS = {"full": FULL, "lora": LORA, "qlora": QLORA, "inference": INFERENCE}

ENCODERS = (
    "FacebookAI/roberta-base", "google-bert/bert-base-uncased", "google-t5/t5-small", "google/vit-base-patch16-224",
    "microsoft/deberta-v3-base", "openai/clip-vit-base-patch32", "openai/whisper-tiny",
)  # fmt: skip
"""They have no other loss than their own. Mamba is in no list: a plan takes its fused kernels, which people install; a dry run
has none of them, so that it runs transformers' loop. Both say so."""


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", FAMILIES)
def test_peaks_agree_in_every_family(name: str, job: str) -> None:
    assert abs(difference(name, JOBS[job])) <= WORST


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", ENCODERS)
def test_peaks_agree_in_encoders(name: str, job: str) -> None:
    words = {**JOBS[job], "loss": "hf"}
    if job == "inference":
        words["new_tokens"] = 8
    assert abs(difference(name, words)) <= WORST


def test_an_encoder_is_built_as_a_plan_counts_it() -> None:
    fields, name = fields_of("google-bert/bert-base-uncased")
    assert fields["architectures"] == ["BertForMaskedLM"]
    found = simulate(agreement.cut(fields, 2), name, make_job(task="infer", seq=64), Card())
    assert found.program.startswith("BertModel")
    assert any("without a masked language model's head" in note for note in found.notes)
