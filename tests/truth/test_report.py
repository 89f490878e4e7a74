"""A set scored from end to end, on the command line and in Python; the reduced set guards what holds today."""

import json
import subprocess
import sys

import pytest
from tests.support.truth_rows import row, write

from loadmaster.cli.main import main
from loadmaster.errors import UsageError
from loadmaster.workflows.truth import report as module
from loadmaster.workflows.truth import score_set

OUTCOME = {
    "id", "group", "confidence", "model", "gpus", "what", "convention", "measured_bytes", "predicted", "error", "hit",
    "wrong", "between", "card", "phase", "reason", "assumed",
}  # fmt: skip
SCORE = {
    "rows", "predicted", "groups", "mean_of_group_medians", "p90", "median_over_rows", "p90_over_rows", "false_fits",
    "false_refusals", "false_fits_by_likely", "false_refusals_by_likely", "interval_hit_rate",
}  # fmt: skip


def run(capsys, *arguments):
    code = main(["truth", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_weights_by_hand(tmp_path):
    """Weights of the tiny model: 2 × 1000 × 64 for table and head; a layer has q and o (64 × 64), k and v (64 × 32),
    three matrices of 64 × 128 and two norms; one norm at the end. Every tensor here is a multiple of 512 bytes but the
    norms, which take 512 each."""
    layer = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 2 * 512
    expected = 2 * 2 * 1000 * 64 + 2 * layer + 512
    made = row(kind="infer", method="serve", measured={"what": "model_weights", "bytes": expected})
    report = score_set(write(tmp_path, made))
    (found,) = report.rows
    assert (found.predicted.likely, found.error, found.hit) == (expected, 0.0, True)
    assert report.score["high"].mean_of_group_medians == 0.0
    assert report.score["medium"].rows == 0


def test_json_has_what_is_promised(tmp_path, capsys):
    path = write(
        tmp_path,
        row(new_field=1),
        row(id="b", method="peft:x", confidence="low"),
        row(id="c", config="gone.json"),
    )
    code, out, err = run(capsys, "--set", path, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "loadmaster.truth/1"
    assert set(found["score"]) == set(found["single_device"]) == {"high", "medium", "low"}
    assert all(set(s) == SCORE for s in found["score"].values())
    assert found["unknown_fields"] == {"new_field": 1}
    first, second, third = found["rows"]
    assert set(first) == OUTCOME
    assert first["predicted"]["low"] <= first["predicted"]["likely"] <= first["predicted"]["high"]
    assert first["error"] == pytest.approx(first["predicted"]["likely"] / 1_000_000 - 1)
    assert second["predicted"] is None
    assert "peft:x" in second["reason"]
    assert "gone.json" in third["reason"]
    assert found["worst"][0]["id"] == "a"
    assert {"component", "bytes", "formula", "source"} <= set(found["worst"][0]["entries"][0])
    group = found["groups"][0]
    assert (group["group"], group["confidence"], group["convention"], group["rows"]) == (
        "g",
        "high",
        "allocated",
        2,
    )


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("options", [[], ["--rows"], ["--group", "litgpt-resource"]])
def test_text_fits_the_terminal(columns, options, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = run(capsys, *options)
    assert code == 0
    assert max(map(len, out.splitlines())) <= int(columns)
    assert "predicted" in out
    assert "\x1b" not in out
    assert "…" not in "".join(out.splitlines()[:1])


def test_a_group_that_is_not_there_names_those_that_are(tmp_path, capsys):
    code, out, err = run(capsys, "--set", write(tmp_path, row()), "--group", "h")
    assert (code, out) == (2, "")
    assert "'h'" in err
    assert "the set has g" in err


@pytest.mark.parametrize("arguments", [["--set", "gone.jsonl"], ["--configs", "gone"]])
def test_paths_that_are_not_there(arguments, capsys):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "gone" in err


def test_a_broken_line_is_named(tmp_path, capsys):
    code, _, err = run(capsys, "--set", write(tmp_path, text=json.dumps(row()) + "\n{"))
    assert code == 2
    assert "line 2" in err
    assert "Traceback" not in err


def test_an_installed_package_asks_for_a_set(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "report.py"))
    with pytest.raises(UsageError, match="--set PATH"):
        score_set()


def test_a_config_outside_its_folder_is_not_read(tmp_path):
    report = score_set(write(tmp_path, row(config="../measured.jsonl")))
    assert "isn't a file name" in report.rows[0].reason


def test_the_verb_loads_no_torch():
    code = (
        "import sys; from loadmaster.cli.main import main; main(['truth', '--json']); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'pynvml')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def reduced():
    return score_set()


def test_every_row_of_the_reduced_set_has_a_prediction_or_a_reason(reduced):
    assert len(reduced.rows) == 56
    assert reduced.unknown_fields == {}
    for found in reduced.rows:
        assert (found.predicted is None) != (found.reason is None), found.id
        assert (
            found.predicted is None or found.predicted.low <= found.predicted.likely <= found.predicted.high
        )


def test_the_reduced_set_does_not_get_worse(reduced):
    high = reduced.single_device["high"]
    assert high.predicted / high.rows >= BOUNDS["coverage"]
    assert high.mean_of_group_medians <= BOUNDS["mean_of_group_medians"]
    assert high.p90 <= BOUNDS["p90"]
    assert high.false_fits <= BOUNDS["false_fits"]


BOUNDS = {"coverage": 0.85, "mean_of_group_medians": 0.05, "p90": 0.12, "false_fits": 1}
"""What held when this was written, slightly loosened; tighten with every mechanism that is added."""
