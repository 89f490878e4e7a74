"""peft: adapters aren't saved."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.scripts.adjustments import Adjustments


def _model(module: Any, adjustments: Adjustments) -> None:
    adjustments.skip(module.PeftModel, "save_pretrained", "PeftModel.save_pretrained")


PATCHES = {"peft.peft_model": _model}
