"""Pictures in an example batch: their planes or patches, and the tokens that stand for them in a text."""

from __future__ import annotations

from typing import Any

import torch

Batch = dict[str, Any]


def plain(config: Any, count: int) -> torch.Tensor:
    """``count`` pictures of the size that a vision tower was trained on."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return torch.zeros(count, getattr(vision, "num_channels", None) or 3, height, width)


def among_tokens(config: Any, ids: torch.Tensor, images: int, names: set[str]) -> Batch:
    """What stands beside ``ids`` for ``images`` pictures a sequence; the ids get the pictures' tokens."""
    return {"pixel_values": plain(config, ids.shape[0] * images)}
