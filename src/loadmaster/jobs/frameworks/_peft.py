"""What PEFT makes of LoRA targets where transformers 5 has turned a list of experts into two 3-D tensors.

So that adapters of transformers 4 still fit, PEFT renames targets of these models: projections of experts and the router are no
modules any more, so their parameters are adapted (``target_parameters``). Linear layers of the same names, in shared experts and
in dense layers, are then no targets. Sources: peft/utils/transformers_weight_conversion.py (_convert_peft_config_moe of 0.21,
_MOE_TARGET_MODULE_MAPPING), transformers/conversion_mapping.py (_MODEL_TO_CONVERSION_PATTERN of 5.24).
"""

from __future__ import annotations

from collections.abc import Iterable

Parameters = tuple[tuple[str, int], ...]
"""Last parts of parameters' names, each with how many ranks its adapter has for one of the job."""

_QWEN = {
    "gate": "gate.weight",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
_MIXTRAL = {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}
RENAMED: dict[str, dict[str, str]] = {
    "mixtral": _MIXTRAL,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe", "olmoe", "qwen3_moe", "qwen3_next"), _QWEN),
}
"""Old names of targets and what they became, by model_type. qwen2_moe itself isn't among transformers' renamed ones."""
FUSED = 2
"""Gate and up projection are one tensor, whose adapter has the ranks of both."""


def converted(
    model_type: str, targets: tuple[str, ...], linear: Iterable[str]
) -> tuple[tuple[str, ...], Parameters, tuple[str, ...]]:
    """Targets that stay modules, parameters that are adapted, and targets that PEFT refuses because they are half of a fused
    tensor. ``linear``: last parts of the names of linear layers, for ``all-linear``."""
    names = RENAMED.get(model_type)
    if names is None:
        return targets, (), ()
    if "all-linear" in targets:
        targets = (*sorted(set(linear) - set(names)), *names)
    asked = {
        name: target for target in targets for name in names if target == name or target.endswith(f".{name}")
    }
    if not asked:
        return targets, (), ()
    stay = tuple(target for target in targets if target not in asked.values())
    found = sorted({names[name] for name in asked})
    both = {name for name in names if names[name] == "gate_up_proj"}
    halves = tuple(asked[name] for name in sorted(both & set(asked))) if not both <= set(asked) else ()
    return stay, tuple((name, FUSED if name == "gate_up_proj" else 1) for name in found), halves
