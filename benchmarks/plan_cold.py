"""How long a cold ``loadmaster plan`` takes, the whole process, beside vramcalc, the fastest comparable calculator on PyPI.

    python benchmarks/plan_cold.py [--vramcalc PATH] [--runs 20]

Without ``--vramcalc`` it is installed from PyPI into a temporary environment. Both read the same config.json from disk;
runs alternate, the first of each is not counted (it compiles bytecode), and the median is printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import loadmaster

VRAMCALC = "vramcalc==0.1.2"
CONFIG = Path(loadmaster.__file__).parent / "data" / "models" / "Qwen__Qwen2.5-7B.json"
LIMIT_S = 0.35
TIMES = 3


def questions(
    loadmaster_command: list[str], vramcalc: str, folder: str
) -> list[tuple[str, list[str], list[str]]]:
    """What is asked, and how of each."""
    config = str(Path(folder) / "config.json")
    plan = [*loadmaster_command, "plan", config, "--gpu", "rtx4090"]
    calc = [vramcalc, "estimate", folder, "--gpu", "24"]
    lora = ["--train", "--lora", "16", "--seq"]
    return [
        ("inference, fits", [*plan, "--task", "infer"], calc),
        ("LoRA with checkpointing, fits", [*plan, "--method", "lora", "--seq", "1024", "--checkpointing", "full"],
         [*calc, *lora, "1024", "--grad-checkpoint"]),
        ("LoRA, does not fit: with the search for what would", [*plan, "--method", "lora", "--seq", "4096"],
         [*calc, *lora, "4096"]),
        ("full training, does not fit: with the search", plan, [*calc, "--train", "--seq", "2048"]),
    ]  # fmt: skip


def seconds(command: list[str]) -> float:
    """One whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, check=False
    )
    taken = time.perf_counter() - start
    if done.stderr:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode()[-300:]}")
    return taken


def install(folder: str) -> str:
    """vramcalc in an environment of its own."""
    venv.create(folder, with_pip=True)
    subprocess.run([f"{folder}/bin/python", "-m", "pip", "-q", "install", VRAMCALC], check=True)
    return f"{folder}/bin/vramcalc"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vramcalc", help="its command, if it is installed")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vramcalc = arguments.vramcalc or install(f"{folder}/venv")
        model = Path(folder) / "model"
        model.mkdir()
        shutil.copy(CONFIG, model / "config.json")
        program = shutil.which("loadmaster", path=str(Path(sys.executable).parent))
        own = [program] if program else [sys.executable, "-m", "loadmaster"]
        print(f"{'':<52}{'loadmaster':>11}{'vramcalc':>10}{'ratio':>7}")
        for name, ours, theirs in questions(own, vramcalc, str(model)):
            pairs = [(seconds(ours), seconds(theirs)) for _ in range(arguments.runs + 1)][1:]
            mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
            print(f"{name:<52}{mine * 1000:>8.0f} ms{other * 1000:>7.0f} ms{mine / other:>7.1f}")


if __name__ == "__main__":
    main()
