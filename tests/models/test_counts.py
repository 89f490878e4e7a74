"""Parameters of every catalogue model against published totals and, where these differ, the explained difference.

``counts.csv``: the count (transformers 5.24 and diffusers 0.42 on the meta device, tied weights once, buffers not),
the published total, and what the difference is. Flan-T5 is counted with the head its checkpoint has.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from loadmaster.models import read_model
from loadmaster.models.parameters import (
    ROLES,
    active_parameters,
    by_role,
    flops_per_token,
    kv_bytes,
    kv_bytes_per_token,
    kv_layers,
    parameter_count,
    state_bytes,
    tensors,
)
from loadmaster.models.readers import catalogue
from loadmaster.models.spec import Attention

with Path(__file__).with_name("counts.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_count_is_exact(row):
    spec = read_model(row["name"])
    assert parameter_count(spec) == int(row["parameters"])
    assert spec.exact
    assert active_parameters(spec) == int(row["active"] or row["parameters"])
    assert spec.assumed == ()


@pytest.mark.parametrize("row", [row for row in ROWS if row["published"]], ids=lambda row: row["name"])
def test_the_published_total_is_met_or_explained(row):
    difference = int(row["published"]) - int(row["parameters"])
    assert difference == 0 or row["difference_is"]


def test_every_catalogue_model_has_a_count():
    assert sorted(row["name"] for row in ROWS) == catalogue.names()


@pytest.mark.parametrize("name", catalogue.names())
def test_roles_sum_to_the_whole(name):
    spec = read_model(name)
    roles = by_role(spec)
    assert sum(roles.values()) == parameter_count(spec)
    assert set(roles) <= set(ROLES)
    assert all(count > 0 for count in roles.values())
    assert all(tensor.count > 0 and all(side > 0 for side in tensor.shape) for tensor in tensors(spec))


@pytest.mark.parametrize("name", catalogue.names())
def test_a_layer_reads_and_writes_its_towers_width(name):
    for tower in read_model(name).towers:
        assert set(tower.layout) == set(range(len(tower.blocks)))
        for block in tower.blocks:
            mixer = block.mixer
            if isinstance(mixer, Attention) and tower.prefix and not name.startswith("black-forest-labs/"):
                assert mixer.output.outputs == tower.hidden
                assert mixer.output.inputs == mixer.heads * mixer.value_dim
                assert mixer.heads % mixer.kv_heads == 0


def test_nothing_in_the_catalogue_is_a_surprise():
    surprises = {name: read_model(name).warnings for name in catalogue.names()}
    surprises = {name: found for name, found in surprises.items() if found}
    assert set(surprises) == {"google/gemma-3n-E2B-it", "google/gemma-3n-E4B-it"}


def test_kv_cache_of_known_models():
    # 2 × 32 layers × 8 heads × 128 × 2 bytes (Llama 3.1); 2 × 32 × 32 × 128 × 2 (Llama 2).
    assert kv_bytes_per_token(read_model("meta-llama/Llama-3.1-8B")) == 131072
    assert kv_bytes_per_token(read_model("meta-llama/Llama-2-7b-hf")) == 524288
    assert kv_bytes_per_token(read_model("tiiuae/falcon-7b")) == 2 * 32 * 64 * 2
    assert kv_bytes_per_token(read_model("google-bert/bert-base-uncased")) == 0


def test_latent_cache_of_deepseek():
    spec = read_model("deepseek-ai/DeepSeek-V3")
    # arXiv:2412.19437: 61 layers of 512 + 64 values; expanded, 128 heads of 192 + 128.
    assert kv_bytes_per_token(spec, latent=True) == 61 * 576 * 2
    assert kv_bytes_per_token(spec) == 61 * 128 * 320 * 2


def test_windows_cap_the_cache():
    spec = read_model("google/gemma-2-2b")
    assert [(kv.layers, kv.window) for kv in kv_layers(spec)] == [(13, 4096), (13, None)]
    per_layer = 2 * 4 * 256 * 2
    assert kv_bytes(spec, 10_000) == 13 * per_layer * 4096 + 13 * per_layer * 10_000
    assert kv_bytes(spec, 100) == 100 * kv_bytes_per_token(spec)


def test_layers_that_share_keys_have_no_cache():
    spec = read_model("google/gemma-3n-E4B-it")
    assert sum(kv.layers for kv in kv_layers(spec)) == 20


def test_cross_attention_caches_the_other_towers_tokens():
    spec = read_model("openai/whisper-tiny")
    own, cross = (sum(kv.layers for kv in kv_layers(spec) if kv.cross is flag) for flag in (False, True))
    assert (own, cross) == (4, 4)
    assert kv_bytes(spec, 10, cross_tokens=1500) == (10 + 1500) * 4 * 2 * 384 * 2


def test_states_do_not_grow():
    spec = read_model("state-spaces/mamba-130m-hf")
    assert kv_bytes_per_token(spec) == 0
    assert state_bytes(spec) == 24 * 1536 * (16 + 4) * 2
    assert state_bytes(read_model("gpt2")) == 0


def test_flops_follow_the_matrices():
    spec = read_model("meta-llama/Llama-3.1-8B")
    matrices = parameter_count(spec) - by_role(spec)["embedding"] - by_role(spec)["norm"]
    assert flops_per_token(spec) == 2 * matrices
    # Two for each value of a key and a value: 32 layers, 32 heads, 128 + 128.
    assert flops_per_token(spec, 1000) - flops_per_token(spec) == 2 * 32 * 32 * 256 * 1000


def test_flops_leave_idle_experts_out():
    spec = read_model("mistralai/Mixtral-8x7B-v0.1")
    matrices = active_parameters(spec) - by_role(spec)["embedding"] - by_role(spec)["norm"]
    assert flops_per_token(spec) == 2 * matrices
