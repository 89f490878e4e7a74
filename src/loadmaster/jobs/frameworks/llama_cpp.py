"""llama.cpp with all layers on the GPU: the cache of the whole context and one compute buffer are made at the start.

Sources: src/llama-model.cpp (the input layer, so the token table, stays in host memory; a tied one is there twice),
src/llama-kv-cache.cpp, src/llama-context.cpp graph_reserve; ``memory/serving.py`` has the formulas.
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "llama_cpp"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What every version read so far does."""
    return Facts(engine="llama.cpp", cache="static", native_activations=True, host_embedding=True)
