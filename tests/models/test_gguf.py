"""GGUF headers: known architectures, others, and every way a header can be wrong."""

from __future__ import annotations

import os
import struct

import pytest
from tests.support.tensorfiles import gguf, pair, text

from loadmaster.errors import BadFileError
from loadmaster.models import read_model
from loadmaster.models.parameters import parameter_count

META = {
    "general.architecture": "llama", "general.name": "Tiny", "general.file_type": 1, "llama.block_count": 2,
    "llama.embedding_length": 32, "llama.feed_forward_length": 48, "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2, "llama.context_length": 64, "tokenizer.ggml.tokens": ["a", "b", "c"],
}  # fmt: skip


def layer(index):
    place = f"blk.{index}"
    return {
        f"{place}.attn_q.weight": (32, 32), f"{place}.attn_k.weight": (16, 32), f"{place}.attn_v.weight": (16, 32),
        f"{place}.attn_output.weight": (32, 32), f"{place}.ffn_gate.weight": (48, 32), f"{place}.ffn_up.weight": (48, 32),
        f"{place}.ffn_down.weight": (32, 48), f"{place}.attn_norm.weight": (32,), f"{place}.ffn_norm.weight": (32,),
    }  # fmt: skip


TENSORS = {"token_embd.weight": (64, 32), **layer(0), **layer(1), "output_norm.weight": (32,)}


def write(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return str(path)


def test_a_llama(tmp_path):
    spec = read_model(write(tmp_path, gguf(META, TENSORS)))
    assert (spec.model_type, spec.name, spec.stored_dtype, spec.quantization) == (
        "llama",
        "Tiny",
        "float16",
        None,
    )
    assert spec.warnings == ()
    assert spec.exact
    assert spec.head.tied
    assert spec.max_positions == 64
    assert (
        parameter_count(spec)
        == spec.stored.parameters
        == 64 * 32 + 2 * (3 * 32 * 48 + 2 * 32 * 32 + 2 * 16 * 32 + 64) + 32
    )
    assert spec.stored.total_bytes == 2 * parameter_count(spec)


def test_an_untied_head(tmp_path):
    spec = read_model(write(tmp_path, gguf(META, {**TENSORS, "output.weight": (64, 32)})))
    assert not spec.head.tied
    assert spec.warnings == ()


def test_blocks_of_a_quantised_file(tmp_path):
    # Q8_0: 32 values in 34 bytes.
    tensors = {name: tuple(64 if side == 48 else side for side in shape) for name, shape in TENSORS.items()}
    meta = META | {"general.file_type": 7, "llama.feed_forward_length": 64}
    data = gguf(meta, tensors, kind=8, block=(32, 34))
    # Norms of 32 values are one block too; a real file keeps them in float32.
    spec = read_model(write(tmp_path, data))
    assert (spec.quantization, spec.stored_dtype) == ("Q8_0", None)
    assert spec.stored.total_bytes == parameter_count(spec) // 32 * 34
    assert spec.stored.parameters == parameter_count(spec)


def test_qwen3_has_head_norms(tmp_path):
    meta = {key.replace("llama.", "qwen3."): value for key, value in META.items()}
    meta |= {"general.architecture": "qwen3", "qwen3.attention.key_length": 8}
    norms = {f"blk.{index}.attn_{side}_norm.weight": (8,) for index in range(2) for side in "qk"}
    spec = read_model(write(tmp_path, gguf(meta, {**TENSORS, **norms})))
    assert spec.model_type == "qwen3"
    assert spec.warnings == ()


def test_experts_make_a_mixtral(tmp_path):
    meta = META | {"llama.expert_count": 4, "llama.expert_used_count": 2}
    tensors = {name: shape for name, shape in TENSORS.items() if ".ffn_" not in name or "norm" in name}
    for index in range(2):
        place = f"blk.{index}"
        tensors |= {f"{place}.ffn_gate_inp.weight": (4, 32), f"{place}.ffn_down_exps.weight": (4, 32, 48)}
        tensors |= {f"{place}.ffn_{part}_exps.weight": (4, 48, 32) for part in ("gate", "up")}
    spec = read_model(write(tmp_path, gguf(meta, tensors)))
    assert spec.model_type == "mixtral"
    assert spec.warnings == ()


def test_an_unknown_architecture_is_read_by_names(tmp_path):
    meta = {key.replace("llama.", "novel."): value for key, value in META.items()} | {
        "general.architecture": "novel"
    }
    spec = read_model(write(tmp_path, gguf(meta, TENSORS)))
    assert not spec.exact
    assert spec.model_type == "novel"
    assert "'novel'" in spec.warnings[0]
    assert parameter_count(spec) == spec.stored.parameters
    assert len(spec.decoder.layout) == 2


def test_a_count_that_differs_is_reported(tmp_path):
    spec = read_model(write(tmp_path, gguf(META, {**TENSORS, "blk.0.extra.weight": (32,)})))
    assert "+32" in spec.warnings[-1]


def header(tensors=0, pairs=0, version=3, body=b""):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


STRING = struct.pack("<I", 8)
BROKEN = {
    "other magic": (b"GGML" + bytes(40), "begin with GGUF"),
    "magic alone": (b"GGUF", "begin with GGUF"),
    "version 1": (header(version=1), "version 1"),
    "big endian": (header(version=3 << 24), "version"),
    "no end of tensors": (header(tensors=2**63), "no model has"),
    "no end of fields": (header(pairs=2**63), "no model has"),
    "cut fields": (header(pairs=5), "past the end"),
    "long key": (header(pairs=1, body=struct.pack("<Q", 2**63)), "past the end"),
    "negative-looking key": (header(pairs=1, body=struct.pack("<Q", 2**64 - 1)), "past the end"),
    "unknown type": (header(pairs=1, body=text("k") + struct.pack("<I", 99)), "unknown type 99"),
    "array of arrays": (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 9, 1)), "unknown type 9"),
    "endless numbers": (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 4, 2**62)), "past the end"),
    "endless texts": (header(pairs=1, body=text("k") + struct.pack("<IIQ", 9, 8, 2**62)), "no model has"),
    "field twice": (header(pairs=2, body=pair("k", 1) + pair("k", 2)), "twice"),
    "no architecture": (header(pairs=1, body=pair("k", 1)), "no general.architecture"),
    "many axes": (header(tensors=1, body=text("t") + struct.pack("<I", 99)), "99 axes"),
    "unknown tensor type": (
        header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 32, 77, 0)),
        "unknown type 77",
    ),
    "removed tensor type": (
        header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 32, 4, 0)),
        "unknown type 4",
    ),
    "half a block": (
        header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 33, 8, 0)),
        "impossible shape",
    ),
    "huge tensor": (
        header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 2**63, 0, 0)),
        "impossible shape",
    ),
    "beyond the file": (header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 32, 0, 0)), "cut short"),
    "far offset": (header(tensors=1, body=text("t") + struct.pack("<IQIQ", 1, 32, 0, 2**63)), "cut short"),
    "bad alignment": (header(pairs=1, body=pair("general.alignment", 0)), "alignment"),
}


@pytest.mark.parametrize("case", BROKEN, ids=BROKEN)
def test_a_broken_header_is_one_sentence(case, tmp_path):
    data, reason = BROKEN[case]
    with pytest.raises(BadFileError, match=reason) as caught:
        read_model(write(tmp_path, data + bytes(64 if case == "other magic" else 0)))
    assert len(str(caught.value)) < 300


def test_overlapping_tensors(tmp_path):
    info = b"".join(text(name) + struct.pack("<IQIQ", 1, 32, 0, 0) for name in "ab")
    with pytest.raises(BadFileError, match="overlap"):
        read_model(write(tmp_path, header(tensors=2, body=info) + bytes(512)))


def test_a_truncated_download(tmp_path):
    data = gguf(META, TENSORS)
    for end in (5, 23, 60, 200, 500, 900, len(data) // 2, len(data) - 1):
        with pytest.raises(BadFileError):
            read_model(write(tmp_path, data[:end]))


def test_absurd_metadata_is_refused_by_the_family(tmp_path):
    for key, value in (("llama.block_count", 0), ("llama.block_count", 2**31), ("llama.embedding_length", 0)):
        with pytest.raises(BadFileError, match="expected a whole number"):
            read_model(write(tmp_path, gguf({**META, key: value}, TENSORS)))


def test_only_the_header_is_read(tmp_path):
    info = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 2**20, 2**18, 0, 0)
    body = pair("general.architecture", "novel") + info
    path = write(tmp_path, header(tensors=1, pairs=1, body=body))
    try:
        os.truncate(path, 2**40 + 4096)
    except OSError:
        pytest.skip("this file system has no files with holes of this size")
    assert read_model(path).stored.total_bytes == 2**40
