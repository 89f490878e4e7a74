"""From a GGUF file's metadata to the config fields its family reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.errors import BadFileError, UnknownNameError
from loadmaster.models.readers.headers import TensorFile

_TYPES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi2": "phi", "phi3": "phi3", "gpt2": "gpt2",
    "bloom": "bloom", "falcon": "falcon", "gptneox": "gpt_neox", "starcoder2": "starcoder2", "stablelm": "stablelm",
    "olmo2": "olmo2", "command-r": "cohere", "deepseek2": "deepseek_v2", "gpt-oss": "gpt_oss", "smollm3": "smollm3",
    "granite": "granite", "glm4": "glm4", "mamba": "mamba",
}  # fmt: skip
"""llama.cpp's architecture names (gguf-py/gguf/constants.py, MODEL_ARCH_NAMES) and the families that read them."""

_FIELDS = {
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "attention.sliding_window": ("sliding_window",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "ssm.conv_kernel": ("conv_kernel",),
    "ssm.state_size": ("state_size",),
    "ssm.time_step_rank": ("time_step_rank",),
}
"""Metadata fields, without the architecture in front, and the config fields they are."""

_OWN_NAMES = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_inner", "n_positions"),
    "bloom": ("hidden_size", "n_layer", "n_head"),
}


def config_fields(path: Path, metadata: dict[str, Any], file: TensorFile) -> dict[str, Any]:
    """Config fields for the family; raises UnknownNameError for an architecture that has none."""
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise BadFileError(path, "has no general.architecture in its metadata")
    shapes = {stub.name: stub.shape for stub in file.stubs}
    kind = _TYPES.get(arch)
    if kind is None:
        raise UnknownNameError("architecture", arch[:80])

    def number(key: str) -> Any:
        found = metadata.get(f"{arch}.{key}")
        # A value for each layer: the family gets the largest, which is the one of full layers.
        return (
            max(found) if isinstance(found, list) and found and all(type(x) is int for x in found) else found
        )

    fields: dict[str, Any] = {}
    for key, names in _FIELDS.items():
        value = number(key)
        if value is not None and not (key.startswith("expert") and value == 0):
            fields.update(dict.fromkeys(names, value))
    if kind == "llama" and fields.get("num_experts"):
        kind = "mixtral"
    fields["model_type"] = kind
    fields["num_key_value_heads"] = number("attention.head_count_kv") or fields.get("num_attention_heads")
    fields["num_kv_heads"] = fields["num_key_value_heads"]
    size = number("attention.key_length")
    if size:
        fields["head_dim"] = size
    fields["vocab_size"] = _vocabulary(path, metadata, arch, shapes)
    fields["tie_word_embeddings"] = "output.weight" not in shapes
    fields.update(_biases(kind, shapes))
    fields.update(_special(kind, fields, number))
    if kind in _OWN_NAMES:
        keep = {*_OWN_NAMES[kind], "model_type", "vocab_size", "tie_word_embeddings"}
        fields = {name: value for name, value in fields.items() if name in keep}
    return fields


def _vocabulary(path: Path, metadata: dict[str, Any], arch: str, shapes: dict[str, tuple[int, ...]]) -> int:
    table = shapes.get("token_embd.weight")
    if table and len(table) == 2:
        return table[0]
    found = metadata.get(f"{arch}.vocab_size")
    if type(found) is int:
        return found
    raise BadFileError(path, "has no token_embd.weight, so its vocabulary is unknown")


def _biases(kind: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, bool]:
    has = "blk.0.attn_q.bias" in shapes
    if kind in ("llama", "granite", "smollm3", "glm4", "cohere", "gpt_oss"):
        return {"attention_bias": has}
    if kind == "stablelm":
        return {"use_qkv_bias": has, "use_parallel_residual": "blk.0.ffn_norm.weight" not in shapes}
    return {}


def _special(kind: str, fields: dict[str, Any], number: Any) -> dict[str, Any]:
    if kind == "deepseek_v2":
        rope = number("rope.dimension_count")
        total, value = number("attention.key_length_mla"), number("attention.value_length_mla")
        total, value = total or number("attention.key_length"), value or number("attention.value_length")
        if all(type(x) is int for x in (rope, total, value)):
            return {
                "qk_rope_head_dim": rope,
                "qk_nope_head_dim": total - rope,
                "v_head_dim": value,
                "head_dim": None,
            }
    if kind == "falcon":
        grouped = fields["num_key_value_heads"] != 1
        return {"new_decoder_architecture": grouped, "multi_query": not grouped}
    if kind == "mamba":
        return {"expand": max(1, (number("ssm.inner_size") or 0) // max(1, fields.get("hidden_size") or 1))}
    return {}
