"""How many values of a head are rotated (RoPE): all of them, or a fraction in the NeoX, Phi and GLM families."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.models.config import Config


def rotary_dim(config: Config, head_dim: int, default: float = 1.0) -> int:
    """Rotated values of a head: the config's fraction of ``head_dim``, or the config class's ``default`` fraction."""
    fraction = config.number("partial_rotary_factor", "rotary_pct", default=_nested(config) or default)
    if fraction > 1:
        raise config.fault("partial_rotary_factor", "a fraction of at most 1")
    return int(head_dim * fraction)


def _nested(config: Config) -> float | None:
    # transformers 5 writes it into rope_parameters.
    found = config.fields.get("rope_parameters")
    value = found.get("partial_rotary_factor") if isinstance(found, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and 0 < value <= 1 else None
