"""Puts the output of README.md's ``loadmaster plan`` command back into README.md: python scripts/refresh_readme.py"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(\$ loadmaster (plan [^\n]+)\n).*?(?=```)", re.DOTALL)
LEFT_OUT = ("Phases", "RAM", "Assumed")  # sections that README doesn't show


def shown(match: re.Match[str]) -> str:
    """The command with what it prints now, less what is left out."""
    done = subprocess.run(
        [sys.executable, "-m", "loadmaster", *shlex.split(match[2])],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=False,
    )
    sections = done.stdout.decode("utf-8").rstrip().split("\n\n")
    return match[1] + "\n\n".join(s for s in sections if not s.startswith(LEFT_OUT)) + "\n"


README.write_text(BLOCK.sub(shown, README.read_text(encoding="utf-8")), encoding="utf-8")
