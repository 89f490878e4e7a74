"""Whatever bytes or fields come in, what comes out is a spec or a LoadmasterError, soon."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.tensorfiles import gguf, safetensors

from loadmaster.errors import LoadmasterError
from loadmaster.models import families, read_model
from loadmaster.models.parameters import by_role, kv_bytes_per_token, parameter_count
from loadmaster.models.readers import catalogue, config_json, generic
from loadmaster.models.readers.headers import Stub, TensorFile

CONFIGS = {}
for _name in catalogue.names():
    _fields = json.loads((catalogue.FOLDER / f"{_name.replace('/', '__', 1)}.json").read_text())
    CONFIGS.setdefault(
        _fields["model_type"],
        {key: x for key, x in _fields.items() if not key.startswith("_") or key == "_class_name"},
    )

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 300), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def outcome(call):
    try:
        spec = call()
    except LoadmasterError as error:
        sentence = str(error)
    else:
        sentence = "a spec"
        sound(spec)
    assert 0 < len(sentence) < 1000
    assert "\n" not in sentence


def sound(spec):
    assert parameter_count(spec) >= 0
    assert sum(by_role(spec).values()) == parameter_count(spec)
    assert kv_bytes_per_token(spec) >= 0


@pytest.mark.parametrize("kind", sorted(CONFIGS))
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_config_with_odd_fields(kind, data):
    fields = json.loads(json.dumps(CONFIGS[kind]))
    places = [fields, *(part for part in fields.values() if isinstance(part, dict) and part)]
    for part in list(fields.get("components", {}).values()):
        places.append(part)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places))
        key = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            place[key] = data.draw(ODD)
        else:
            place.pop(key, None)
        if not place:
            break
    outcome(lambda: config_json.from_fields(fields, "test"))


@pytest.mark.parametrize("kind", families.names())
def test_every_family_refuses_an_empty_config(kind):
    with pytest.raises(LoadmasterError):
        config_json.from_fields({"model_type": kind}, "test")


@given(
    st.dictionaries(
        st.sampled_from(["model_type", "hidden_size", "components", "_class_name", "text_config"]), ODD
    )
)
def test_a_config_of_anything(fields):
    outcome(lambda: config_json.from_fields(fields, "test"))


def read_bytes(tmp_path_factory, name, data):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(data)
    outcome(lambda: read_model(str(path)))


SAFE = safetensors({"model.layers.0.a.weight": (2, 3), "model.layers.1.a.weight": (2, 3), "n.weight": (3,)})
META = {"general.architecture": "llama", "llama.block_count": 1, "tokenizer.ggml.tokens": ["a", "b"]}
GGUF = gguf(META, {"token_embd.weight": (4, 32), "output_norm.weight": (32,)})


def flip(data, changes):
    out = bytearray(data)
    for place, value in changes:
        out[place % len(out)] = value
    return bytes(out)


CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6)


@given(changes=CHANGES, end=st.integers(0, 2000))
@settings(max_examples=300)
def test_a_damaged_safetensors_file(tmp_path_factory, changes, end):
    read_bytes(tmp_path_factory, "m.safetensors", flip(SAFE, changes)[: max(end, 1)])


@given(changes=CHANGES, end=st.integers(0, 2000))
@settings(max_examples=300)
def test_a_damaged_gguf_file(tmp_path_factory, changes, end):
    read_bytes(tmp_path_factory, "m.gguf", flip(GGUF, changes)[: max(end, 1)])


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-10, 2**65), st.floats(), st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@given(header=st.dictionaries(st.text(max_size=5), JSON, max_size=4), tail=st.binary(max_size=40))
@example(header={"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, tail=b"1234")
def test_any_header(tmp_path_factory, header, tail):
    text = json.dumps(header).encode()
    read_bytes(tmp_path_factory, "m.safetensors", struct.pack("<Q", len(text)) + text + tail)


NAMES = st.sampled_from(
    [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "attn.c_attn",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "ln_1",
    ]
)
SHAPES = st.lists(st.integers(1, 300), min_size=0, max_size=4)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["h.0", "h.1", "x.9.y.3", "embed", "lm_head"]), NAMES), SHAPES, max_size=8
    )
)
def test_any_names(tmp_path_factory, found):
    tensors = {f"{place}.{name}.weight": tuple(shape) for (place, name), shape in found.items()}
    if sum(len(shape) for shape in tensors.values()) > 12:
        return
    stubs = tuple(
        Stub(name=name, dtype="float16", shape=shape, size_bytes=2) for name, shape in tensors.items()
    )
    outcome(lambda: generic.read([TensorFile(path="x", size_bytes=9, stubs=stubs)], "x"))


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_list_of_a_config_may_be_empty(kind):
    """One level less than any network has: every list in turn, in the config and in the parts nested in it."""

    def holders(part):
        yield part
        for inner in part.values():
            if isinstance(inner, dict):
                yield from holders(inner)

    fields = json.loads(json.dumps(CONFIGS[kind]))
    for place in list(holders(fields)):
        for key, was in list(place.items()):
            if isinstance(was, list):
                place[key] = []
                outcome(lambda: config_json.from_fields(fields, "test"))
                place[key] = was
