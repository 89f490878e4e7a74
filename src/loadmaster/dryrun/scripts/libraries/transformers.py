"""transformers: nothing is saved; masks are built as on a GPU."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.scripts.adjustments import Adjustments


def _saved(owner: str) -> Any:
    def patch(module: Any, adjustments: Adjustments) -> None:
        found = getattr(module, owner, None)
        if found is not None:
            adjustments.skip(found, "save_pretrained", f"{owner}.save_pretrained", ())
            adjustments.skip(found, "push_to_hub", f"{owner}.push_to_hub")

    return patch


def _trainer(module: Any, adjustments: Adjustments) -> None:
    for name in (
        "_save_checkpoint", "save_model", "save_state", "save_metrics", "_load_best_model", "create_model_card",
        "push_to_hub", "_save", "_save_optimizer_and_scheduler", "_save_rng_state",
    ):  # fmt: skip
        adjustments.skip(module.Trainer, name, f"Trainer.{name.lstrip('_')}")


def _masks(module: Any, adjustments: Adjustments) -> None:
    """Fake tensors look as if a program were traced; then masks are built that a GPU's run leaves out."""
    adjustments.replace(module, "is_tracing", lambda _: lambda *_, **__: False)


PATCHES = {
    "transformers.modeling_utils": _saved("PreTrainedModel"),
    "transformers.tokenization_utils_base": _saved("PreTrainedTokenizerBase"),
    "transformers.processing_utils": _saved("ProcessorMixin"),
    "transformers.configuration_utils": _saved("PreTrainedConfig"),
    "transformers.generation.configuration_utils": _saved("GenerationConfig"),
    "transformers.image_processing_base": _saved("ImageProcessingMixin"),
    "transformers.trainer": _trainer,
    "transformers.masking_utils": _masks,
}
