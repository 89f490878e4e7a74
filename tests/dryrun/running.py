"""Scripts in processes of their own, as ``loadmaster dryrun SCRIPT.py`` runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadmaster.dryrun.result import DryRun

SCRIPTS = Path(__file__).parent / "scripts"
WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""cuBLAS' workspace on compute capability 8.0 (CublasHandlePool.cpp: :4096:2:16:8), one in forward and one in backward."""

PROGRAM = """
import msgspec, sys
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.scripts.run import run_script
from loadmaster.errors import LoadmasterError
options = msgspec.json.decode(sys.argv[2])
card = Card(limited=True, usable_bytes=options["limit"], total_bytes=options["limit"]) if options["limit"] else Card()
try:
    run = run_script(options["script"], options["argv"], card, steps=options["steps"], assume=options["assume"])
except LoadmasterError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)
open(sys.argv[1], "wb").write(msgspec.json.encode(run))
"""


class Ran:
    """What a script's dry run found, and what it printed."""

    def __init__(self, process: subprocess.CompletedProcess[str], record: Path) -> None:
        self.code, self.out, self.errors = process.returncode, process.stdout, process.stderr
        self.run: Any = msgspec.json.decode(record.read_bytes(), type=DryRun) if record.exists() else None

    @property
    def peaks(self) -> dict[tuple[int, str], int]:
        """By step and phase."""
        return {(each.step, each.phase): each.allocated_bytes for each in self.run.phases}


def run(
    folder: Path,
    script: str | Path,
    *argv: object,
    steps: int = 2,
    limit: int = 0,
    assume: tuple[str, ...] = (),
) -> Ran:
    """Run a script of ``scripts/``, or any by its path, with ``folder`` as working folder."""
    folder.mkdir(exist_ok=True)
    record = folder.parent / f"{folder.name}.json"
    options = {
        "script": str(SCRIPTS / script), "argv": [str(each) for each in argv], "steps": steps, "limit": limit,
        "assume": list(assume),
    }  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(record), msgspec.json.encode(options).decode()],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return Ran(process, record)


def block(size_bytes: int) -> int:
    """What the allocator hands out."""
    return -(-size_bytes // 512) * 512
