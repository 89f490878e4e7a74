"""The shape of the sources: sizes, one home for byte units, a docstring in every room, nothing of one machine in them.

Import directions are import-linter's (pyproject.toml); docstrings of public functions are ruff's (D1).
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGES = sorted(path for path in SOURCES if path.name == "__init__.py")
LONGEST_FILE, LONGEST_FUNCTION = 400, 60  # lines
BYTE_FACTORS = {2**10, 2**20, 2**30, 2**40}
MACHINE_PATH = re.compile(r"(?<![\w.\]})])/(?:root|work|home/\w+|Users/\w+|opt/(?:wheels|pypi))\b/?")


def name(path):
    return str(path.relative_to(ROOT))


def constant(node):
    """The value of a literal, or of 2**30, 1 << 30, 1024 * 1024 written out; None otherwise."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            a, b = constant(left), constant(right)
            if a is None or b is None:
                return None
            match op:
                case ast.Pow() if abs(b) < 100:
                    return a**b
                case ast.LShift() if isinstance(a, int) and isinstance(b, int) and 0 <= b < 100:
                    return a << b
                case ast.Mult():
                    return a * b
    return None


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_one_subject(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_function_fits_on_a_screen(path):
    functions = [
        n
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [
        f"{n.name}: {lines} lines"
        for n in functions
        if (lines := n.end_lineno - n.lineno + 1) > LONGEST_FUNCTION
    ] == []


# A family's defaults are shapes: GPT-2 has 1024 positions.
BYTE_SOURCES = [path for path in SOURCES if path.name != "units.py" and path.parent.name != "families"]


@pytest.mark.parametrize("path", BYTE_SOURCES, ids=name)
def test_only_units_knows_what_a_kib_is(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [f"line {n.lineno}: {ast.unparse(n)}" for n in ast.walk(tree) if constant(n) in BYTE_FACTORS] == []


@pytest.mark.parametrize("path", PACKAGES, ids=name)
def test_every_room_says_what_it_knows(path):
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert re.match(r"\S.{20,}", doc), "the first line says what belongs here"


def test_every_room_says_something_of_its_own():
    docs = [ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in PACKAGES]
    assert sorted(name(path) for path, doc in zip(PACKAGES, docs, strict=True) if docs.count(doc) > 1) == []


def test_no_tracked_file_names_a_path_of_one_machine():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for file in filter(None, tracked.stdout.split("\0")):
        path = ROOT / file
        # A stranger's log keeps the paths it came with.
        if not path.is_file() or "fixtures" in path.parts or path == Path(__file__):
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{file}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []
