"""Networks that no family describes, read from tensor names."""

from __future__ import annotations

import json

import pytest
from tests.support.tensorfiles import expand, safetensors

from loadmaster.models import read_model
from loadmaster.models.parameters import by_role, parameter_count
from loadmaster.models.readers import generic
from loadmaster.models.readers.headers import Stub, TensorFile
from loadmaster.models.spec import Attention, Mlp


def from_shapes(shapes):
    stubs = tuple(
        Stub(name=name, dtype="bfloat16", shape=shape, size_bytes=2) for name, shape in shapes.items()
    )
    return generic.read([TensorFile(path="x", size_bytes=1, stubs=stubs)], "x")


@pytest.mark.parametrize(
    "name",
    [
        "HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen3-0.6B", "openai-community/gpt2", "EleutherAI/pythia-70m",
        "google/gemma-2-2b", "facebook/opt-125m", "state-spaces/mamba-130m-hf", "google-bert/bert-base-uncased",
    ],
)  # fmt: skip
def test_a_known_network_without_its_config(name):
    known = read_model(name)
    spec = from_shapes(expand(known))
    assert parameter_count(spec) == parameter_count(known)
    assert len(spec.decoder.layout) == len(known.decoder.layout)
    assert spec.decoder.hidden == known.decoder.hidden
    assert not spec.exact
    assert spec.warnings


def test_attention_and_feed_forward_are_recognised():
    known = read_model("Qwen/Qwen3-0.6B")
    block = from_shapes(expand(known)).decoder.blocks[0]
    assert isinstance(block.mixer, Attention)
    # The norm on a head's queries tells the size of a head.
    assert (block.mixer.heads, block.mixer.kv_heads, block.mixer.head_dim) == (16, 8, 128)
    assert isinstance(block.feedforward, Mlp)
    assert (block.feedforward.width, block.feedforward.gated) == (3072, True)
    roles, same = by_role(from_shapes(expand(known))), by_role(known)
    assert all(roles[role] == same[role] for role in ("embedding", "attention", "mlp", "norm"))


def test_experts_and_routers_count_as_such():
    shapes = {}
    for layer in range(2):
        place = f"model.layers.{layer}.block_sparse_moe"
        shapes[f"{place}.gate.weight"] = (4, 8)
        for expert in range(4):
            shapes |= {f"{place}.experts.{expert}.{name}.weight": (8, 8) for name in ("w1", "w2", "w3")}
    spec = from_shapes(shapes)
    assert by_role(spec)["experts"] == 2 * 4 * 3 * 64
    assert parameter_count(spec) == 2 * (4 * 3 * 64 + 32)
    assert len(spec.decoder.blocks) == 1


def test_layers_of_different_kinds():
    shapes = {f"h.{index}.fc1.weight": (8 if index % 2 else 16, 4) for index in range(6)}
    tower = from_shapes(shapes).decoder
    assert tower.layout == (0, 1, 0, 1, 0, 1)


def test_two_stacks_are_two_towers():
    shapes = {f"vision.blocks.{index}.attn.qkv.weight": (24, 8) for index in range(2)}
    shapes |= {f"text.layers.{index}.mlp.up_proj.weight": (32, 8) for index in range(4)}
    shapes |= {"text.embed_tokens.weight": (100, 8)}
    spec = from_shapes(shapes)
    assert [(tower.modality, len(tower.layout)) for tower in spec.towers] == [("vision", 2), ("text", 4)]
    assert spec.head.vocab == 100


def test_an_unknown_family_with_tensors_is_read_by_names(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "brandnew", "hidden_size": 8}))
    shapes = {f"h.{index}.fc1.weight": (8, 4) for index in range(3)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(shapes))
    spec = read_model(str(tmp_path))
    assert spec.model_type == "brandnew"
    assert "brandnew" in spec.warnings[0]
    assert parameter_count(spec) == 96
