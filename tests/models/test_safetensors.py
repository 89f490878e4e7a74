"""Safetensors headers: whole files, shards, folders, and every way a header can be wrong."""

from __future__ import annotations

import json
import os
import pickle
import zipfile

import pytest
from tests.support.tensorfiles import expand, with_header
from tests.support.tensorfiles import safetensors as build

from loadmaster.errors import BadFileError
from loadmaster.models import read_model
from loadmaster.models.parameters import parameter_count
from loadmaster.models.readers import safetensors

TINY = {
    "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return tmp_path


def tensors_of(folder):
    return expand(read_model(str(folder / "config.json")))


def test_a_folder_with_both_agrees(folder):
    (folder / "model.safetensors").write_bytes(build(tensors_of(folder), {"format": "pt"}))
    spec = read_model(str(folder))
    assert spec.warnings == ()
    assert spec.exact
    assert spec.stored.total_bytes == 2 * parameter_count(spec)
    assert spec.stored.by_dtype_bytes == {"bfloat16": 2 * parameter_count(spec)}
    assert (spec.stored.files, spec.stored.parameters) == (1, parameter_count(spec))
    assert spec.stored.largest_file_bytes == (folder / "model.safetensors").stat().st_size


def test_a_sharded_folder(folder):
    tensors = tensors_of(folder)
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[:9], "model-2.safetensors": names[9:]}
    for shard, part in halves.items():
        (folder / shard).write_bytes(build({name: tensors[name] for name in part}))
    index = {"weight_map": {name: shard for shard, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for source in (folder, folder / "model.safetensors.index.json"):
        spec = read_model(str(source))
        assert (spec.stored.files, spec.warnings) == (2, ())
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(BadFileError, match="no such file"):
        read_model(str(folder))


def test_an_index_cannot_lead_out_of_its_folder(folder):
    index = {"weight_map": {"a": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "other.safetensors").write_bytes(build({"a": (1,)}))
    with pytest.raises(BadFileError, match="no file beside it"):
        read_model(str(folder))


def test_contradictions_are_reported(folder):
    tensors = tensors_of(folder)
    tensors["model.layers.1.mlp.up_proj.weight"] = (40, 16)
    (folder / "model.safetensors").write_bytes(build(tensors))
    first, count = read_model(str(folder)).warnings
    assert "model.layers.1.mlp.up_proj.weight is 40 × 16 in the files, 24 × 16 by the config" in first
    assert "+256" in count


def test_a_tie_that_the_files_deny(folder):
    tensors = tensors_of(folder)
    (folder / "config.json").write_text(json.dumps({**TINY, "tie_word_embeddings": True}))
    (folder / "model.safetensors").write_bytes(build(tensors))
    (warning,) = read_model(str(folder)).warnings
    assert "stored although the config ties it" in warning


def test_a_missing_head(folder):
    tensors = tensors_of(folder)
    del tensors["lm_head.weight"]
    (folder / "model.safetensors").write_bytes(build(tensors))
    assert any("may be tied" in warning for warning in read_model(str(folder)).warnings)


def test_prediction_layers_and_buffers_are_told_apart(folder):
    tensors = tensors_of(folder)
    tensors["model.layers.3.mlp.up_proj.weight"] = (24, 16)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = (4,)
    (folder / "model.safetensors").write_bytes(build(tensors))
    (warning,) = read_model(str(folder)).warnings
    assert "multi-token prediction" in warning


def test_a_file_alone_is_read_by_names(folder):
    tensors = tensors_of(folder)
    alone = folder / "alone"
    alone.mkdir()
    (alone / "model.safetensors").write_bytes(build(tensors))
    for source in (alone, alone / "model.safetensors"):
        spec = read_model(str(source))
        assert not spec.exact
        assert parameter_count(spec) == parameter_count(read_model(str(folder / "config.json")))
        assert len(spec.decoder.layout) == 3


GOOD = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
BROKEN = {
    "empty": (b"", "too few"),
    "four bytes": (b"\x01\0\0\0", "too few"),
    "length of 2^63": (with_header(GOOD, 8, 2**63), "the format allows"),
    "length of 2^64 - 1": (with_header(GOOD, 8, 2**64 - 1), "the format allows"),
    "length past the end": (with_header(GOOD, 0, 5000), "cut short"),
    "truncated data": (with_header(GOOD, 4), "past the end"),
    "too much data": (with_header(GOOD, 12), "behind the last tensor"),
    "no JSON": (with_header(b"\0" * 40), "no JSON object"),
    "a list": (with_header(b"[1]"), "no JSON object"),
    "cut JSON": (with_header(GOOD[:-5], 8), "not valid JSON"),
    "not UTF-8": (with_header(b'{"\xff": 1}', 8), "not UTF-8"),
    "twice": (with_header(b'{"a":' + GOOD[6:-1] + b',"a":' + GOOD[6:-1] + b"}", 8), "twice"),
    "deep": (with_header(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"), "nested"),
    "no shape": (with_header(b'{"a":{"dtype":"F32","data_offsets":[0,8]}}', 8), "no shape"),
    "negative shape": (with_header(GOOD.replace(b"[2]", b"[-2]"), 8), "impossible shape"),
    "huge shape": (with_header(GOOD.replace(b"[2]", b"[2305843009213693952]"), 8), "impossible shape"),
    "product overflow": (with_header(GOOD.replace(b"[2]", b"[4294967296,4294967296]"), 8), "don't match"),
    "NaN shape": (with_header(GOOD.replace(b"[2]", b"[NaN]"), 8), "impossible shape"),
    "true shape": (with_header(GOOD.replace(b"[2]", b"[true]"), 8), "impossible shape"),
    "other shape": (with_header(GOOD.replace(b"[2]", b"[3]"), 8), "don't match"),
    "unknown format": (with_header(GOOD.replace(b"F32", b"X99"), 8), "unknown number format"),
    "reversed offsets": (with_header(GOOD.replace(b"[0, 8]", b"[8, 0]"), 8), "impossible data_offsets"),
    "negative offsets": (with_header(GOOD.replace(b"[0, 8]", b"[-8, 0]"), 8), "impossible data_offsets"),
    "far offsets": (with_header(GOOD.replace(b"[0, 8]", b"[800, 808]"), 8), "past the end"),
    "a hole": (with_header(GOOD.replace(b"[0, 8]", b"[8, 16]"), 16), "leave a hole"),
    "nothing": (with_header(b"{}"), "no tensors"),
}


@pytest.mark.parametrize("case", BROKEN, ids=BROKEN)
def test_a_broken_header_is_one_sentence(case, tmp_path):
    data, reason = BROKEN[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadFileError, match=reason) as caught:
        read_model(str(path))
    assert len(str(caught.value)) < 300
    assert caught.value.exit_code == 2


def test_overlapping_tensors(tmp_path):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry, "b": {**entry, "data_offsets": [4, 12]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(with_header(header, 12))
    with pytest.raises(BadFileError, match="overlap"):
        read_model(str(tmp_path / "x.safetensors"))


def test_only_the_header_is_read(tmp_path):
    # A terabyte of tensors, as a file with a hole: reading any of it would take minutes.
    size = 2**40
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "big.safetensors"
    path.write_bytes(with_header(header))
    os.truncate(path, 8 + len(header) + size)
    assert safetensors.read_file(path).stubs[0].size_bytes == size


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_a_pickle_is_refused_unread(suffix, tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    path = tmp_path / f"pytorch_model{suffix}"
    path.write_bytes(pickle.dumps(Trap()))
    for source in (path, tmp_path):
        with pytest.raises(BadFileError, match="pickle") as caught:
            read_model(str(source))
        assert "safetensors" in caught.value.hint
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_under_another_name(tmp_path):
    path = tmp_path / "weights"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(BadFileError, match="pickle"):
        read_model(str(path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_named_safetensors_is_called_a_pickle(protocol, tmp_path):
    path = tmp_path / "model.safetensors"
    weights = {f"layer.{i}": list(range(100)) for i in range(50)}
    for content in ({}, weights):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        for source in (path, tmp_path):
            with pytest.raises(BadFileError, match="is a pickle") as caught:
                read_model(str(source))
            assert "header of" not in str(caught.value)


def test_an_archive_of_torch_named_safetensors_is_called_a_pickle(tmp_path):
    path = tmp_path / "model.safetensors"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"" * 100)
    with pytest.raises(BadFileError, match="is a pickle"):
        read_model(str(path))


def test_a_header_length_like_a_pickles_first_bytes_is_a_length(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    length = int.from_bytes(b"\x80\x02", "little")
    (tmp_path / "x.safetensors").write_bytes(with_header(header.ljust(length), 8))
    assert read_model(str(tmp_path / "x.safetensors")).stored.total_bytes == 8


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"weight_map": ', "not valid JSON"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../outside.safetensors"}}', "no file beside it"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "no file beside it"),
        (
            '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}}',
            "names model-2.safetensors and 1 more: no such file",
        ),
        ('{"weight_map": {"a": "model-1.safetensors", "z": "model-1.safetensors"}}', "that its files don't have"),
    ],
)  # fmt: skip
def test_a_folder_says_what_is_wrong_with_its_index(content, reason, with_config, folder):
    (folder / "model-1.safetensors").write_bytes(build({"a": (2, 2)}))
    (folder / INDEX).write_text(content)
    if not with_config:
        (folder / "config.json").unlink()
    with pytest.raises(BadFileError, match=reason) as caught:
        read_model(str(folder))
    assert INDEX in str(caught.value)


def test_a_folder_with_an_index_alone(folder):
    (folder / INDEX).write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    assert read_model(str(folder)).stored is None  # the config says enough
    (folder / "config.json").unlink()
    with pytest.raises(BadFileError, match=f"{INDEX}: names model-1.safetensors: no such file"):
        read_model(str(folder))
    (folder / "model-1.safetensors").symlink_to("model-1.safetensors")
    with pytest.raises(BadFileError, match="a link that leads in a circle"):
        read_model(str(folder))


def test_an_adapter_is_not_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(build({"a": (2, 2)}))
    with pytest.raises(BadFileError, match="LoRA adapter"):
        read_model(str(tmp_path))


def test_packed_values_hide_the_count(folder):
    tensors = tensors_of(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    kinds = dict.fromkeys(tensors, "F16") | {name: "I32"}
    (folder / "model.safetensors").write_bytes(build(tensors, dtype=kinds))
    spec = read_model(str(folder))
    assert spec.stored.parameters is None
    assert spec.stored.by_dtype_bytes["int32"] == 24 * 16 * 4
