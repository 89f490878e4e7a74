"""transformers: nothing is saved; masks are built as on a GPU."""

from __future__ import annotations

import os
from typing import Any

import torch

from loadmaster.dryrun.scripts.adjustments import Adjustments


def _saved(owner: str) -> Any:
    def patch(module: Any, adjustments: Adjustments) -> None:
        found = getattr(module, owner, None)
        if found is not None:
            adjustments.skip(found, "save_pretrained", f"{owner}.save_pretrained", ())
            adjustments.skip(found, "push_to_hub", f"{owner}.push_to_hub")

    return patch


FLASH_NOTE = (
    "FlashAttention's own package is run as scaled_dot_product_attention: equal without padding; where rows are padded it takes "
    "less, since it leaves padding out"
)


def _models(module: Any, adjustments: Adjustments) -> None:
    """Models aren't saved, and FlashAttention, whose kernels need a GPU to be there, is torch's."""
    _saved("PreTrainedModel")(module, adjustments)
    notes = adjustments.session.notes

    def adjusting(real: Any) -> Any:
        def adjust(model: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(attn_implementation, str) and "flash" in attn_implementation:
                attn_implementation = "sdpa"
                if FLASH_NOTE not in notes:
                    notes.append(FLASH_NOTE)
            return real(model, attn_implementation, *args, **kwargs)

        return adjust

    adjustments.replace(module.PreTrainedModel, "_check_and_adjust_attn_implementation", adjusting)


class _NoFolders:
    """The module os, but for making folders."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def makedirs(self, *_: Any, **__: Any) -> None:
        """The Trainer makes its output folder when it begins."""


def _trainer(module: Any, adjustments: Adjustments) -> None:
    for name in (
        "_save_checkpoint", "save_model", "save_state", "save_metrics", "_load_best_model", "create_model_card",
        "push_to_hub", "_save", "_save_optimizer_and_scheduler", "_save_rng_state",
    ):  # fmt: skip
        adjustments.skip(module.Trainer, name, f"Trainer.{name.lstrip('_')}")
    if hasattr(module, "os"):
        adjustments.patches.set(module, "os", _NoFolders())


def _masks(module: Any, adjustments: Adjustments) -> None:
    """Fake tensors look as if a program were traced; then masks are built that a GPU's run leaves out."""
    adjustments.replace(module, "is_tracing", lambda _: lambda *_, **__: False)


def _stopping(module: Any, adjustments: Adjustments) -> None:
    """No sequence ends before the longest that is allowed: that takes the most."""
    values = adjustments.session.values

    def goes_on(_: Any, input_ids: Any, *__: Any, **___: Any) -> Any:
        values.note("whether a sequence has ended", "not before the longest allowed")
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    for name in ("EosTokenCriteria", "StopStringCriteria"):
        adjustments.replace(getattr(module, name, None), "__call__", lambda _: goes_on)


PATCHES = {
    "transformers.modeling_utils": _models,
    "transformers.tokenization_utils_base": _saved("PreTrainedTokenizerBase"),
    "transformers.processing_utils": _saved("ProcessorMixin"),
    "transformers.configuration_utils": _saved("PreTrainedConfig"),
    "transformers.generation.configuration_utils": _saved("GenerationConfig"),
    "transformers.image_processing_base": _saved("ImageProcessingMixin"),
    "transformers.trainer": _trainer,
    "transformers.masking_utils": _masks,
    "transformers.generation.stopping_criteria": _stopping,
}
