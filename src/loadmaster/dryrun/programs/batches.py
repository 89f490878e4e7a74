"""An example batch for a model: host tensors with the shapes that a data loader would bring, read off its forward's arguments.

Token ids are all 0 and masks all 1: padding moves no memory. What a text model sees of pictures is in ``pictures``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from loadmaster.dryrun.known import LARGEST_KNOWN
from loadmaster.dryrun.programs import pictures
from loadmaster.errors import UsageError
from loadmaster.jobs.job import Job

Batch = dict[str, Any]


def arguments(model: Any) -> set[str]:
    """The names that a model's forward takes."""
    return set(inspect.signature(model.forward).parameters)


def takes(model: Any, name: str) -> bool:
    """Whether a model's forward takes an argument, by name or among its keyword arguments (models that hand them on)."""
    names = arguments(model)
    return name in names or ("kwargs" in names and bool(getattr(model, "can_generate", lambda: False)()))


def example(model: Any, job: Job, count: int, *, labels: bool) -> Batch:
    """A batch of ``count`` sequences (or pictures, or sounds) for the base model ``model``; with ``labels`` for training."""
    names, config = arguments(model), model.config
    if getattr(config, "is_encoder_decoder", False):
        return _encoder_decoder(config, names, job, count, labels=labels)
    if "input_ids" in names:
        return _tokens(config, names, job, count, labels=labels)
    if "pixel_values" in names:
        batch: Batch = {"pixel_values": pictures.plain(config, count)}
        if labels and "labels" in names:
            batch["labels"] = torch.zeros(count, dtype=torch.long)
        return batch
    raise UsageError(
        f"a dry run has no example batch for {type(model).__name__}, whose forward takes {', '.join(sorted(names)[:4])}"
    )


def _tokens(config: Any, names: set[str], job: Job, count: int, *, labels: bool) -> Batch:
    length = _length(config, job)
    batch: Batch = {"input_ids": torch.zeros(count, length, dtype=torch.long)}
    if "pixel_values" in names and job.images:
        batch |= pictures.among_tokens(config, batch["input_ids"], job, names)
    if "attention_mask" in names:
        batch["attention_mask"] = torch.ones(count, length, dtype=torch.long)
    if labels and "labels" in names:
        batch["labels"] = torch.zeros(count, length, dtype=torch.long)
    if labels and "return_loss" in names:
        batch["return_loss"] = True
    return batch


def _length(config: Any, job: Job) -> int:
    """The job's, but no more than a text encoder beside pictures has positions for (CLIP: 77)."""
    text = getattr(config, "text_config", None)
    if config.model_type in ("clip", "siglip", "chinese_clip", "altclip", "metaclip_2") and text is not None:
        return min(job.seq_len, int(text.max_position_embeddings))
    return job.seq_len


def _encoder_decoder(config: Any, names: set[str], job: Job, count: int, *, labels: bool) -> Batch:
    batch: Batch = {}
    if "input_features" in names and "input_ids" not in names:
        # Whisper: the first convolution's stride halves frames to the encoder's positions.
        batch["input_features"] = torch.zeros(count, config.num_mel_bins, 2 * config.max_source_positions)
    elif "input_values" in names and "input_ids" not in names:
        batch["input_values"] = torch.zeros(count, 16_000 * 10)
    else:
        source = job.source_len or job.seq_len
        batch["input_ids"] = torch.zeros(count, source, dtype=torch.long)
        if "attention_mask" in names:
            batch["attention_mask"] = torch.ones(count, source, dtype=torch.long)
    target = torch.zeros(count, _decoder_length(config, job), dtype=torch.long)
    batch["labels" if labels else "decoder_input_ids"] = target
    return batch


def _decoder_length(config: Any, job: Job) -> int:
    return min(job.seq_len, int(getattr(config, "max_target_positions", None) or job.seq_len))


def on_device(batch: Batch, tracker: Any, dtype: torch.dtype | None = None) -> Batch:
    """The batch on the simulated device, its blocks named; floating tensors in ``dtype``."""
    moved: Batch = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            value = value.to(dtype) if dtype is not None and value.is_floating_point() else value
            mean = 1.0 if "mask" in name else 0.0
            value = value.to("cuda")
            if value.numel() > LARGEST_KNOWN:
                value._expected = mean  # type: ignore[attr-defined]
            tracker.tag(value, "inputs")
        moved[name] = value
    return moved
