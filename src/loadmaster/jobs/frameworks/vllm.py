"""vLLM (V1 engine): the KV cache is a pool of blocks that takes what its budget leaves.

Sources: vllm/v1/worker/gpu_worker.py determine_available_memory, vllm/v1/core/kv_cache_utils.py, vllm/engine/arg_utils.py
get_batch_defaults; ``memory/serving.py`` has the formulas.
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "vllm"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What every version read so far does."""
    return Facts(engine="vllm", native_activations=True)
