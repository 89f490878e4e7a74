"""What every command does with a standard output that is closed, full, a pipe, or not UTF-8, and when it is interrupted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadmaster.cli import main as front

MODEL, CARD = "openai-community/gpt2", ["--gpu", "rtx4090"]
COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "verb help": ["plan", "--help"],
    "plan": ["plan", MODEL, *CARD],
    "plan json": ["plan", MODEL, *CARD, "--json"],
    "models list": ["models", "list"],
    "models show": ["models", "show", MODEL],
    "models json": ["models", "show", MODEL, "--json"],
    "hardware": ["hardware"],
    "hardware list": ["hardware", "list"],
    "hardware show": ["hardware", "show", "a100-80gb:1g.10gb"],
    "hardware compare": ["hardware", "compare", "4090", "H100:8"],
    "truth": ["truth", "--rows"],
}  # fmt: skip
ENCODINGS = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
}


def start(words, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LC_", "COLUMNS"))}
    return subprocess.Popen(
        [sys.executable, "-m", "loadmaster", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**inherited, **environment},
    )  # fmt: skip


def shell(redirect, words):
    """Through a shell, with standard output as ``redirect`` says."""
    command = f'exec "$0" -m loadmaster "$@" {redirect}'
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("redirect", [">&-", ">/dev/full"])
def test_where_nothing_can_be_printed_one_line_says_so(name, redirect):
    done = shell(redirect, COMMANDS[name])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("loadmaster: standard output ")


def test_an_error_has_its_exit_code_wherever_it_is_written():
    for redirect in ("2>&-", "2>/dev/full"):
        assert shell(redirect, ["plan", MODEL, "--gpu", "rtx4091"]).returncode == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_encoding_without_unicode_gets_ascii(name, encoding):
    process = start(COMMANDS[name], **ENCODINGS[encoding])
    out, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode in (0, 3)
    assert out.isascii()
    assert b"?" not in out.replace(b"? No GPU", b"")
    if "json" in name:
        in_full, _ = start(COMMANDS[name], PYTHONIOENCODING="utf-8").communicate(timeout=60)
        assert json.loads(out) == json.loads(in_full)


@pytest.mark.parametrize("name", [name for name in COMMANDS if "json" not in name])
def test_piped_lines_have_no_blanks_at_their_ends(name):
    out, _ = start(COMMANDS[name], PYTHONIOENCODING="utf-8").communicate(timeout=60)
    assert [line for line in out.decode().splitlines() if line != line.rstrip()] == []


def test_a_name_that_is_no_text(tmp_path):
    config = Path(front.__file__).parents[1] / "data" / "models" / "openai-community__gpt2.json"
    path = os.fsencode(tmp_path) + b"/\xff.json"
    Path(os.fsdecode(path)).write_bytes(config.read_bytes())
    for words, code in ((["models", "show"], 0), (["plan", *CARD], 0), (["plan", *CARD, "--json"], 2)):
        process = start([words[0], *words[1:], os.fsdecode(path)], PYTHONIOENCODING="utf-8")
        _, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert b"Traceback" not in err


def test_an_interruption_that_python_cannot_raise_still_ends_the_program():
    """In a __del__ the interpreter would print KeyboardInterrupt and go on."""
    program = (
        "import os, signal, sys\n"
        "from loadmaster.cli import main as front\n"
        "class Loud:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        for _ in range(1000): pass\n"
        "def run(arguments):\n"
        "    Loud()\n"
        "    print('still running')\n"
        "    return 0\n"
        "front._dispatch = run\n"
        "sys.exit(front.main([]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_control_c_while_it_works():
    """How soon a verb is at work is the machine's: an interrupt before that ends the interpreter itself, so try later."""
    codes = []
    for wait_s in (0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0):
        process = start(["truth"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        codes.append(process.returncode)
        if codes[-1] == 130:
            assert err == b""
            return
    raise AssertionError(f"never 130: {codes}")


def test_errors_are_wrapped_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert front.main(["plan", MODEL, "--gpu", "rtx4091 " * 9]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
