"""``loadmaster models`` at the door: what is printed, and with which exit code."""

from __future__ import annotations

import json

import pytest

from loadmaster.cli.main import main
from loadmaster.models.readers import catalogue


def run(capsys, *arguments):
    code = main(["models", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(params=[80, 120])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_list(capsys, width):
    code, out, err = run(capsys, "list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 1 + len(catalogue.names())
    assert max(len(line.rstrip()) for line in lines) <= width
    assert "\x1b" not in out


def test_a_pipe_gets_whole_names(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = run(capsys, "list")
    assert all(name in out for name in catalogue.names())


def test_list_by_family_and_text(capsys):
    _, out, _ = run(capsys, "list", "instruct", "--family", "phi3", "--json")
    names = [model["name"] for model in json.loads(out)["models"]]
    assert names == sorted(names)
    assert "microsoft/Phi-3-mini-4k-instruct" in names
    assert all("instruct" in name.lower() for name in names)


@pytest.mark.parametrize("name", catalogue.names())
def test_every_model_fits_the_terminal(capsys, name, width):
    code, out, _ = run(capsys, "show", name)
    assert code == 0
    assert max(len(line.rstrip()) for line in out.splitlines()) <= width


def test_show_prints_units(capsys):
    _, out, _ = run(capsys, "show", "Llama-3.1-8B")
    for part in (
        "8.03 B (8,030,261,248)",
        "128.0 KiB per token in bfloat16",
        "GFLOP per token",
        "the same count",
    ):
        assert part in out


def test_show_json(capsys):
    _, out, _ = run(capsys, "show", "DeepSeek-V3", "--json")
    shown = json.loads(out)
    assert shown["schema"] == "loadmaster.models/1"
    assert shown["parameters"]["total"] == 671026404352
    assert sum(shown["parameters"]["by_role"].values()) == 671026404352
    assert shown["kv_cache"]["latent_bytes_per_token"] == 70272
    assert shown["published_parameters"] == 684531386000


def test_show_a_size(capsys):
    code, out, _ = run(capsys, "show", "--params", "7B")
    assert code == 0
    assert "assumed: a Llama-like network" in out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("show",),
        ("show", "no-such-model"),
        ("list", "--family", "lama"),
        ("list", "zzz"),
        ("show", "--params", "x"),
    ],
)
def test_a_wrong_question_is_one_line(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("loadmaster: ")
    assert "Traceback" not in err
