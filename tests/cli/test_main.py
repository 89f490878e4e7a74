"""The front of the command line: help, version, wrong names, interruption and closed pipes."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from loadmaster.cli import main as front
from loadmaster.errors import BadFileError

VERBS = sorted(
    path.stem.replace("_", "-") for path in Path(front.__file__).with_name("verbs").glob("[!_]*.py")
)


@pytest.fixture
def verb(tmp_path, monkeypatch):
    """Makes the command line know one verb, ``haul``, that does what the test wants."""

    def make(run):
        (tmp_path / "haul.py").write_text('"""Carries a load.\n\nAnd more."""\n')
        module = types.ModuleType("haul", "Carries a load.\n\nAnd more.")
        module.add_arguments = lambda parser: parser.add_argument("--weight", type=int, default=1)
        module.run = run
        monkeypatch.setattr(front, "_VERBS", tmp_path)
        monkeypatch.setitem(sys.modules, "loadmaster.cli.verbs.haul", module)

    return make


def loadmaster(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "loadmaster", *arguments],
        capture_output=True, text=True, timeout=60, check=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["-h"], ["help"], ["--help", "--help"], ["help", "help"]]
)
def test_help_lists_every_verb(arguments, capsys):
    assert front.main(arguments) == 0
    printed = capsys.readouterr()
    listed = printed.out.partition("commands:\n")[2].partition("loadmaster COMMAND --help")[0].splitlines()
    assert [line.split()[0] for line in listed if line] == VERBS
    assert printed.err == ""


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_says_in_a_line_what_it_does(name):
    assert front.verbs()[name].endswith(".")


@pytest.mark.parametrize("name", VERBS)
def test_help_verb_is_verb_help(name, capsys):
    assert front.main(["help", name]) == 0
    first = capsys.readouterr().out
    assert front.main([name, "--help"]) == 0
    assert capsys.readouterr().out == first
    assert first.startswith(f"usage: loadmaster {name}")


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag, capsys):
    assert front.main([flag]) == 0
    assert capsys.readouterr().out == "loadmaster 0.1.0\n"


@pytest.mark.parametrize(
    "name", ["frobnicate", "", "__init__", "_x", "../main", "--frobnicate", "x" * 10_000, "ünknown"]
)
def test_an_unknown_command_is_one_line_and_a_hint(name, capsys):
    assert front.main([name]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"loadmaster: unknown command {name!r}\n  loadmaster --help lists the commands\n"


def test_a_misspelt_command_gets_a_suggestion(verb, capsys):
    verb(lambda arguments: 0)
    assert front.main(["hual"]) == 2
    assert capsys.readouterr().err.startswith("loadmaster: unknown command 'hual'; did you mean haul?\n")


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_verb_decides_the_exit_code(verb, code):
    verb(lambda arguments: code)
    assert front.main(["haul"]) == code


def test_a_verb_gets_its_options(verb):
    verb(lambda arguments: arguments.weight)
    assert front.main(["haul", "--weight", "3"]) == 3


@pytest.mark.parametrize(
    "options", [["--wieght", "3"], ["--weight", "heavy"], ["--weight"], ["--wei", "3"], ["more"]]
)
def test_wrong_options_are_usage_errors_with_a_hint(verb, options, capsys):
    verb(lambda arguments: 0)
    assert front.main(["haul", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("loadmaster: ")
    assert printed.err.endswith("\n  loadmaster haul --help lists the options\n")
    assert printed.err.count("\n") == 2


def test_an_error_of_ours_is_printed_without_a_traceback(verb, capsys):
    def run(arguments):
        raise BadFileError("config.json", "is not JSON", hint="it begins with '<html>'")

    verb(run)
    assert front.main(["haul"]) == 2
    assert capsys.readouterr().err == "loadmaster: config.json: is not JSON\n  it begins with '<html>'\n"


def test_ctrl_c_ends_quietly_with_130(verb, capsys):
    def run(arguments):
        os.kill(os.getpid(), signal.SIGINT)

    verb(run)
    assert front.main(["haul"]) == 130
    assert capsys.readouterr() == ("", "")


def test_python_m_loadmaster_is_the_command():
    done = loadmaster("frobnicate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert loadmaster("--version").stdout == "loadmaster 0.1.0\n"


def test_a_reader_that_has_left_is_not_an_error_to_talk_about():
    reader, writer = os.pipe()
    os.close(reader)  # as after `loadmaster --help | true`
    try:
        done = subprocess.run(
            [sys.executable, "-m", "loadmaster", "--help"],
            stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
