"""accelerate: no states are saved or loaded."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.scripts.adjustments import Adjustments


def _accelerator(module: Any, adjustments: Adjustments) -> None:
    for name in ("save_state", "save_model", "save"):
        adjustments.skip(module.Accelerator, name, f"Accelerator.{name}")


PATCHES = {"accelerate.accelerator": _accelerator}
