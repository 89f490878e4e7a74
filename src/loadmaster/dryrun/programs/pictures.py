"""Pictures in an example batch: their planes or patches, and the tokens that stand for them in a text."""

from __future__ import annotations

import math
from typing import Any

import torch

from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

Batch = dict[str, Any]


def plain(config: Any, count: int) -> torch.Tensor:
    """``count`` pictures of the size that a vision tower was trained on."""
    vision = getattr(config, "vision_config", config)
    height, width = _size(vision)
    return torch.zeros(count, getattr(vision, "num_channels", None) or 3, height, width)


def _size(vision: Any) -> tuple[int, int]:
    size = getattr(vision, "image_size", None) or 224
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def among_tokens(config: Any, ids: torch.Tensor, job: Job, names: set[str]) -> Batch:
    """What stands beside ``ids`` for the job's pictures of each sequence; the ids get the pictures' tokens. Raises
    BadValueError where a sequence is too short for them."""
    count, images = ids.shape[0], job.images
    if "aspect_ratio_ids" in names:
        return _tiles(config, ids, images)
    if "image_grid_thw" in names:
        return _patches(config, ids, job, names)
    pixels = plain(config, count * images)
    if "image_sizes" in names and config.model_type in ("mistral3", "pixtral", "lfm2_vl"):
        height, width = pixels.shape[-2:]
        _place(config, ids, tokens(config), images)
        return {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]] * (count * images))}
    _place(config, ids, tokens(config), images)
    batch: Batch = {"pixel_values": pixels}
    if config.model_type in ("idefics2", "idefics3", "smolvlm"):
        batch["pixel_values"] = pixels.view(count, images, *pixels.shape[1:])
    if "token_type_ids" in names:
        batch["token_type_ids"] = (ids == image_token(config)).long()
    return batch


def image_token(config: Any) -> int:
    """The id that stands for a part of a picture."""
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return int(getattr(config, name))
    return 1


def tokens(config: Any) -> int:
    """Tokens of one picture in the text, by what each family's projector leaves of its patches."""
    vision = config.vision_config
    height, width = _size(vision)
    patch = int(getattr(vision, "patch_size", None) or 16)
    patches = (height // patch) * (width // patch)
    for name in ("mm_tokens_per_image", "image_seq_len"):
        if getattr(config, name, None) is not None:
            return int(getattr(config, name))
    if getattr(config, "spatial_merge_size", None) is not None:
        side = int(config.spatial_merge_size)
        return (height // patch // side) * (width // patch // side)
    ratio = getattr(vision, "pixel_shuffle_ratio", None) or getattr(config, "downsample_ratio", None)
    if ratio is not None:
        return int(patches * float(ratio) ** 2)
    if getattr(config, "scale_factor", None) is not None:
        return patches // int(config.scale_factor) ** 2
    return patches + (getattr(config, "vision_feature_select_strategy", None) == "full")


def _place(config: Any, ids: torch.Tensor, each: int, images: int) -> None:
    """Put pictures' tokens into every sequence, a token of text after each picture."""
    needed = images * (each + 1)
    if ids.shape[1] < needed:
        raise BadValueError(
            "seq",
            ids.shape[1],
            f"at least {needed}: a picture of this model takes {each} tokens (images is {images})",
        )
    for number in range(images):
        first = number * (each + 1)
        ids[:, first : first + each] = image_token(config)


def _tiles(config: Any, ids: torch.Tensor, images: int) -> Batch:
    """Mllama: every picture in its most tiles, seen through cross-attention."""
    count, length = ids.shape
    vision = config.vision_config
    tiles = int(vision.max_num_tiles)
    height, width = _size(vision)
    ids[:, 0] = image_token(config)
    return {
        "pixel_values": torch.zeros(count, images, tiles, 3, height, width),
        "aspect_ratio_ids": torch.ones(count, images, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(count, images, tiles, dtype=torch.long),
        "cross_attention_mask": torch.ones(count, length, images, tiles, dtype=torch.long),
    }


def _patches(config: Any, ids: torch.Tensor, job: Job, names: set[str]) -> Batch:
    """Qwen-VL: patches of pictures of any size. ``source_len`` patches a sequence, else as many as it has tokens, as square as
    the merging of patches allows."""
    vision = config.vision_config
    merge = int(getattr(vision, "spatial_merge_size", 2))
    each = (job.source_len or ids.shape[1]) // job.images
    rows = max(merge, int(math.sqrt(each)) // merge * merge)
    columns = max(merge, each // rows // merge * merge)
    _place(config, ids, rows * columns // merge**2, job.images)
    total = ids.shape[0] * job.images
    size = int(getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3)
    size *= int(getattr(vision, "temporal_patch_size", 1)) * int(vision.patch_size) ** 2
    batch: Batch = {
        "pixel_values": torch.zeros(total * rows * columns, size),
        "image_grid_thw": torch.tensor([[1, rows, columns]] * total),
    }
    if "mm_token_type_ids" in names:
        batch["mm_token_type_ids"] = (ids == image_token(config)).int()
    return batch
