"""Configs: what is missing, wrong, absurd or unknown."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from loadmaster.errors import BadFileError, LoadmasterError, UnknownNameError
from loadmaster.models import read_model
from loadmaster.models.parameters import parameter_count
from loadmaster.models.readers import catalogue
from loadmaster.models.spec import Experts

LLAMA = json.loads((catalogue.FOLDER / "meta-llama__Llama-3.1-8B.json").read_text())
FIELDS = {key: value for key, value in LLAMA.items() if not key.startswith("_")}


@pytest.fixture
def read(tmp_path):
    def inner(fields):
        path = tmp_path / "config.json"
        path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
        return read_model(str(path))

    return inner


def test_a_config_is_read_like_the_catalogue(read):
    spec = read(FIELDS)
    assert parameter_count(spec) == 8030261248
    assert (spec.stored_dtype, spec.max_positions, spec.warnings) == ("bfloat16", 131072, ())


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size"]
)
def test_a_missing_field_is_named(read, name):
    with pytest.raises(BadFileError, match=name):
        read({key: value for key, value in FIELDS.items() if key != name})


ABSURD = [
    0,
    -1,
    2**63,
    2**64,
    -(2**63),
    1.5,
    float("nan"),
    float("inf"),
    "4096",
    [4096],
    {"a": 1},
    True,
    10**300,
]


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "vocab_size", "num_key_value_heads", "head_dim"]
)
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:20])
def test_an_absurd_value_is_one_sentence(read, name, value):
    with pytest.raises(BadFileError, match=name) as caught:
        read(FIELDS | {name: value})
    assert len(str(caught.value)) < 300


def test_absurd_together(read):
    with pytest.raises(BadFileError, match="more than any network"):
        read(FIELDS | {"num_hidden_layers": 10_000, "vocab_size": 2**31 - 1, "hidden_size": 2**30})


def test_heads_that_do_not_divide(read):
    with pytest.raises(BadFileError, match="divisor of the 32"):
        read(FIELDS | {"num_key_value_heads": 7})
    with pytest.raises(BadFileError, match="multiple of the 33"):
        read({key: value for key, value in FIELDS.items() if key != "head_dim"} | {"num_attention_heads": 33})


def test_more_experts_a_token_than_there_are(read):
    fields = json.loads((catalogue.FOLDER / "mistralai__Mixtral-8x7B-v0.1.json").read_text())
    with pytest.raises(BadFileError, match="only 8 experts"):
        read(fields | {"num_experts_per_tok": 9})


def test_an_unknown_field_is_reported_and_a_harmless_one_not(read):
    spec = read(
        FIELDS
        | {"rope_theta": 1.0, "attention_dropout": 0.5, "bos_token_id": 3, "new_rank": 64, "a_text": "x"}
    )
    (warning,) = spec.warnings
    assert "new_rank = 64" in warning


def test_an_unknown_nested_config_is_reported(read):
    assert any(
        "vision_config" in warning
        for warning in read(FIELDS | {"vision_config": {"hidden_size": 8}}).warnings
    )


def test_an_unknown_family_says_what_can_still_be_done(read):
    with pytest.raises(UnknownNameError) as caught:
        read(FIELDS | {"model_type": "lama"})
    assert "llama" in caught.value.near
    assert "--params" in caught.value.hint
    assert "safetensors" in caught.value.hint


@pytest.mark.parametrize("kind", ["__init__", "../llama", "os", "llama.py", "", "a" * 1000, "\0"])
def test_a_hostile_family_name(read, kind):
    with pytest.raises(LoadmasterError):
        read(FIELDS | {"model_type": kind})


TEXTS = {
    "empty": ("", "not valid JSON"),
    "cut": ('{"model_type": "lla', "not valid JSON"),
    "a list": ("[]", "no JSON object"),
    "a number": ("3", "no JSON object"),
    "twice": ('{"model_type": "llama", "model_type": "gpt2"}', "twice"),
    "deep": ('{"a":' * 10000 + "1" + "}" * 10000, "nested"),
    "long number": ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "not valid JSON|expected"),
    "neither": ("{}", "neither model_type nor _class_name"),
}


@pytest.mark.parametrize("case", TEXTS, ids=TEXTS)
def test_a_bad_file_is_one_sentence(read, case):
    text, reason = TEXTS[case]
    with pytest.raises(BadFileError, match=reason):
        read(text)


def test_other_bytes(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"model_type": "\xff\xfe"}')
    with pytest.raises(BadFileError, match="UTF-8"):
        read_model(str(path))


def test_a_huge_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b" ")
    os.truncate(path, 10**11)
    with pytest.raises(BadFileError, match="bytes"):
        read_model(str(path))


def test_paths_that_lead_nowhere(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling.json").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("loop", "empty", "dangling.json", "pipe.json", "gone.json", "gone.gguf", "gone.safetensors"):
        with pytest.raises(BadFileError) as caught:
            read_model(str(tmp_path / name))
        assert len(str(caught.value)) < 400
    for name in ("loop", "dangling.json"):
        with pytest.raises(BadFileError, match="is a link "):
            read_model(str(tmp_path / name))
    with pytest.raises(BadFileError, match="leads in a circle"):
        read_model(str(loop))
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(BadFileError, match="leads in a circle"):
        read_model(str(tmp_path / "loop.json"))
    for name in ("\0", "a" * 5000, "/" + "b" * 5000, "~nobody-has-this-name/x"):
        with pytest.raises(LoadmasterError):
            read_model(name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.gguf", "model"])
def test_a_file_without_permission(name, tmp_path, monkeypatch):
    def refuse(self, *arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    path = tmp_path / name
    path.write_text("{}")
    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so the mode alone proves nothing
    with pytest.raises(BadFileError, match=r"cannot be read \(Permission denied\)"):
        read_model(str(path))


BOMBS = {
    "heads": ("microsoft__phi-2", {"num_attention_heads": 2**30, "hidden_size": 2**30, "qk_layernorm": True}),
    "layers of a UNet": ("stable-diffusion-v1-5__stable-diffusion-v1-5", {"layers_per_block": 2**30}),
    "depth of a UNet": (
        "stable-diffusion-v1-5__stable-diffusion-v1-5",
        {"transformer_layers_per_block": 2**30},
    ),
    "levels of a UNet": (
        "stable-diffusion-v1-5__stable-diffusion-v1-5",
        {"block_out_channels": [320] * 9000},
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_numbers_that_would_fill_the_memory(read, case):
    name, changes = BOMBS[case]
    fields = json.loads((catalogue.FOLDER / f"{name}.json").read_text())
    place = fields["components"]["unet"] if "components" in fields else fields
    place.update(changes)
    with pytest.raises(BadFileError):
        read(fields)


def test_a_file_of_too_many_values(read):
    with pytest.raises(BadFileError, match="more than"):
        read('{"model_type": "llama", "a": [' + "1," * 5_000_001 + "1]}")


def test_windows_by_layer(read):
    fields = json.loads((catalogue.FOLDER / "Qwen__Qwen2.5-7B.json").read_text())
    spec = read(fields | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20})
    windows = [spec.decoder.blocks[kind].mixer.window for kind in spec.decoder.layout]
    assert windows == [None] * 20 + [4096] * 8
    assert len(read(fields | {"sliding_window": 4096}).decoder.blocks) == 1


def test_layer_types_win(read):
    fields = json.loads((catalogue.FOLDER / "google__gemma-3-1b-it.json").read_text())
    kinds = ["full_attention"] * 25 + ["sliding_attention"]
    spec = read(fields | {"layer_types": kinds})
    assert [spec.decoder.blocks[kind].mixer.window for kind in spec.decoder.layout] == [None] * 25 + [512]
    for wrong in (kinds[1:], ["nonsense"] * 26, "full_attention", [1] * 26):
        with pytest.raises(BadFileError, match="layer_types"):
            read(fields | {"layer_types": wrong})


def test_mistral_has_a_window_unless_told(read):
    fields = json.loads((catalogue.FOLDER / "mistralai__Mistral-7B-v0.1.json").read_text())
    del fields["sliding_window"]
    assert read(fields).decoder.blocks[0].mixer.window == 4096
    assert read(fields | {"sliding_window": None}).decoder.blocks[0].mixer.window is None


def test_sparse_layers(read):
    fields = json.loads((catalogue.FOLDER / "Qwen__Qwen3-30B-A3B.json").read_text())
    spec = read(fields | {"mlp_only_layers": [0, 1], "decoder_sparse_step": 2})
    sparse = [isinstance(spec.decoder.blocks[kind].feedforward, Experts) for kind in spec.decoder.layout]
    assert sparse == [index % 2 == 1 and index > 1 for index in range(48)]


def test_nested_configs_fall_back_to_the_librarys_defaults(read):
    # As google/gemma-3-4b-it has it on the hub.
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    fields = json.loads((catalogue.FOLDER / "google__gemma-3-4b-it.json").read_text())
    spec = read(fields | {"text_config": text})
    assert parameter_count(spec) == 4300079472
    assert any("num_attention_heads = 8" in note for note in spec.assumed)


def test_llava_leaves_its_decoder_to_the_library(read):
    # As llava-hf/llava-1.5-7b-hf has it on the hub.
    text = {
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    }
    fields = json.loads((catalogue.FOLDER / "llava-hf__llava-1.5-7b-hf.json").read_text())
    spec = read(fields | {"text_config": text})
    assert parameter_count(spec) == 7063427072
    assert spec.max_positions == 4096


def test_qwen_vl_is_flat_on_the_hub(read):
    fields = json.loads((catalogue.FOLDER / "Qwen__Qwen2.5-VL-7B-Instruct.json").read_text())
    text = fields.pop("text_config")
    text.pop("model_type")
    spec = read(text | fields)
    assert parameter_count(spec) == 8292166656
    assert spec.warnings == ()


def test_quantised_checkpoints(read):
    assert read(FIELDS | {"quantization_config": {"quant_method": "gptq", "bits": 4}}).quantization == "gptq"
    assert read(FIELDS | {"quantization_config": {"load_in_4bit": True}}).quantization == "bitsandbytes-4bit"
    assert read(FIELDS).quantization is None


def test_an_image_pipeline_folder(tmp_path):
    fields = json.loads((catalogue.FOLDER / "stable-diffusion-v1-5__stable-diffusion-v1-5.json").read_text())
    index = {"_class_name": "StableDiffusionPipeline", "scheduler": ["diffusers", "PNDMScheduler"]}
    for name, part in fields["components"].items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(part))
        index[name] = ["library", part["_class_name"]]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert parameter_count(read_model(str(tmp_path))) == 1066235307
    assert parameter_count(read_model(str(tmp_path / "unet"))) == 859520964
