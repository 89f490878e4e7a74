"""``--params`` alone: a Llama-like network near the count."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import BadValueError, LoadmasterError, UsageError
from loadmaster.models import read_model
from loadmaster.models.parameters import parameter_count


@pytest.mark.parametrize(
    "text", ["1M", "10M", "125M", "350M", "1B", "1.5B", "3B", "7B", "8B", "13B", "34B", "70B", "405B", "10T"]
)
def test_the_count_is_near(text):
    spec = read_model(params=text)
    assert spec.published_parameters is not None
    assert abs(parameter_count(spec) / spec.published_parameters - 1) < 0.02
    assert not spec.exact
    assert len(spec.assumed) == 1
    assert "Llama-like" in spec.assumed[0]


def test_a_known_size_has_the_known_shape():
    spec = read_model(params="8030261248")
    block = spec.decoder.blocks[0]
    assert (len(spec.decoder.layout), spec.decoder.hidden, block.mixer.heads, block.mixer.kv_heads) == (
        32,
        4096,
        32,
        8,
    )
    assert parameter_count(spec) == 8030261248


@given(st.integers(10**6, 10**13))
def test_any_count_gives_a_network(count):
    spec = read_model(params=str(count))
    assert abs(parameter_count(spec) / count - 1) < 0.06
    for tower in spec.towers:
        for block in tower.blocks:
            assert block.mixer.heads % block.mixer.kv_heads == 0


@pytest.mark.parametrize("text", ["", "7X", "-7B", "0", "1e9", "NaN", "7BB", "999T", "9" * 400])
def test_a_bad_count_is_one_sentence(text):
    with pytest.raises(LoadmasterError) as caught:
        read_model(params=text)
    assert isinstance(caught.value, BadValueError)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40))
def test_any_text(text):
    with contextlib.suppress(UsageError):
        read_model(params=text)
