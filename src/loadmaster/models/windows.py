"""Which layers see all keys and which only a window of them, as the config classes of transformers 5 decide it."""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.models.config import Config

FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)


def window(config: Config, default: int | None) -> int | None:
    """The field ``sliding_window``: null means none, missing means the config class's ``default``."""
    if "sliding_window" not in config.fields and default is not None:
        return config.count("sliding_window", default=default)
    if config.fields.get("sliding_window") == 0:
        # Qwen2-MoE writes 0 for "off".
        config.ignore("sliding_window")
        return None
    return config.maybe("sliding_window")


def layer_types(config: Config, layers: int, rule: Callable[[int], str]) -> list[str]:
    """The field ``layer_types``, or, where it is missing, ``rule`` for each layer counted from zero."""
    given = config.texts("layer_types", length=layers, choices=(FULL, SLIDING, CHUNKED, LINEAR))
    return list(given) if given else [rule(index) for index in range(layers)]


def switched(config: Config, layers: int) -> tuple[list[str], int | None]:
    """Qwen's rule: a window only with ``use_sliding_window``, and from layer ``max_window_layers`` on."""
    size = window(config, 4096) if config.flag("use_sliding_window", default=False) else None
    config.ignore("sliding_window")
    first = config.count("max_window_layers", default=28, least=0)
    kinds = layer_types(
        config, layers, lambda index: SLIDING if size is not None and index >= first else FULL
    )
    if size is None and SLIDING in kinds:
        raise config.fault("sliding_window", "a size, because layer_types has sliding layers")
    return kinds, size
