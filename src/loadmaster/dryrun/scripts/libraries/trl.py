"""trl: its trainers save nothing, and describe no models."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.scripts.adjustments import Adjustments


def _base(module: Any, adjustments: Adjustments) -> None:
    owner = getattr(module, "_BaseTrainer", getattr(module, "BaseTrainer", None))
    adjustments.skip(owner, "create_model_card", "Trainer.create_model_card")


PATCHES = {"trl.trainer.base_trainer": _base}
