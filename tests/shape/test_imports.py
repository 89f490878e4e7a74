"""Importing is light and does nothing; the command line stays light until a verb needs more."""

from pathlib import Path

import pytest

import loadmaster

SOURCE = Path(loadmaster.__file__).parent
NEEDS_EXTRAS = {"dryrun", "train", "bench", "launch", "offers", "tui", "web"}  # rooms that may need more
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "__main__.py" and path.relative_to(SOURCE).parts[0] not in NEEDS_EXTRAS
)
HEAVY = {"torch", "transformers", "huggingface_hub", "numpy", "textual", "starlette", "pynvml"}

WATCH = """
import json, os, sys
acts = []
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            acts.append(f"open {path} for writing")
    elif event in ("os.mkdir", "os.remove", "os.rename", "os.putenv", "os.unsetenv", "subprocess.Popen", "os.system",
                   "os.exec", "os.fork", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"):
        acts.append(f"{event} {arguments}")
    elif event == "ctypes.dlopen" and arguments[0] is not None:  # None is Python itself, opened by import ctypes
        acts.append(f"{event} {arguments}")
environment = dict(os.environ)
sys.addaudithook(watch)
"""


@pytest.mark.parametrize("module", MODULES)
def test_importing_does_nothing(module, python, tmp_path):
    code = WATCH + f"import {module}\nprint(json.dumps([acts, dict(os.environ) == environment]))"
    assert python(code) == [[], True]
    assert list(tmp_path.iterdir()) == []


def test_import_loadmaster_loads_nothing_else(loaded_by):
    modules = loaded_by("import loadmaster; dir(loadmaster)")
    assert [m for m in modules if m.startswith("loadmaster")] == ["loadmaster"]
    assert HEAVY.isdisjoint(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_the_front_loads_no_verb(arguments, loaded_by):
    modules = loaded_by(f"from loadmaster.cli.main import main; main({arguments})")
    assert [m for m in modules if m.startswith(("loadmaster.cli.verbs.", "loadmaster.workflows"))] == []
    assert HEAVY.isdisjoint(modules)


def test_the_public_names_are_listed():
    assert dir(loadmaster) == ["__version__", "dryrun", "plan"]
    assert sorted(loadmaster.__all__) == dir(loadmaster)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'loadmaster' has no attribute 'frobnicate'"):
        _ = loadmaster.frobnicate
