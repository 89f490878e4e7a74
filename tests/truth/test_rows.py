"""Reading a set: what is wrong is named with its line; what is unknown is tolerated and reported."""

import json

import pytest
from tests.support.truth_rows import ROW, row, write

from loadmaster.errors import BadFileError
from loadmaster.workflows.truth import read_rows


def test_fields_keep_what_the_source_said(tmp_path):
    found = read_rows(write(tmp_path, row(), row(id="b", seq_len=None)))
    assert [r.id for r in found.rows] == ["a", "b"]
    assert found.rows[0].measured.bytes == 1_000_000
    assert found.rows[1].seq_len is None
    assert found.rows[0].gpus == 1
    assert found.unknown_fields == {}


def test_unknown_fields_are_counted_and_do_not_stop_anything(tmp_path):
    path = write(tmp_path, row(mood="good", measured={"by": "me"}), row(id="b", mood=None))
    assert read_rows(path).unknown_fields == {"measured.by": 1, "mood": 2}


def test_blank_lines_and_a_byte_order_mark_are_nothing(tmp_path):
    path = write(tmp_path, text="\ufeff" + json.dumps(row()) + "\n\n  \n" + json.dumps(row(id="b")))
    assert len(read_rows(path).rows) == 2


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("{not json", "line 2: is not a measurement"),
        ("[1, 2]", "line 2: is not a measurement"),
        (json.dumps(row(id="b")).replace("1000000", "NaN"), "line 2: is not a measurement"),
        (json.dumps(row(id="b", batch_size="two")), "line 2: is not a measurement"),
        (json.dumps(row(id="b", confidence="certain")), "line 2: is not a measurement"),
        (json.dumps({k: v for k, v in ROW.items() if k != "measured"}), "measured"),
        (json.dumps(row(id="b", measured={"bytes": 0})), "line 2: measured.bytes is 0"),
        (json.dumps(row(id="b", measured={"bytes": -5})), "line 2: measured.bytes is -5"),
        (json.dumps(row(id="b", measured={"bytes": 2**62})), "line 2: measured.bytes"),
        (json.dumps(row(id="b", seq_len=0)), "line 2: seq_len is 0"),
        (json.dumps(row()), "line 2: the id 'a' was used in line 1"),
        ("[" * 100_000, "line 2: is not a measurement"),
    ],
)
def test_what_is_no_measurement_is_named_with_its_line(second, says, tmp_path):
    path = write(tmp_path, text=json.dumps(row()) + "\n" + second + "\n")
    with pytest.raises(BadFileError, match=r"^[^\n]*$") as raised:
        read_rows(path)
    assert says in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"\n \n")])
def test_a_set_that_is_not_there_or_empty(make, tmp_path):
    path = tmp_path / "set.jsonl"
    make(path)
    with pytest.raises(BadFileError):
        read_rows(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(BadFileError, match="line 1"):
        read_rows(path)
