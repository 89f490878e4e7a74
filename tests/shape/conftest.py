"""Clean processes in which to see what an import brings along."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def python(tmp_path):
    """Runs code in a clean process in an empty home; gives what it prints last, read as JSON."""

    def run(code):
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def loaded_by(python):
    """The names of all modules that are loaded after a statement."""
    return lambda statement: python(f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))")
