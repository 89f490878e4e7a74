"""ExLlama, a generator for GPTQ checkpoints with kernels of its own (turboderp/exllama).

Sources: model.py ExLlamaCache (float16 keys and values for all ``max_seq_len`` tokens, made at once), ExLlama.__init__
(temp_dq: the largest matrix), ``forward`` with ``last_id_only``. Its default keeps the token table on the host, which is
counted on the device here.
"""

from __future__ import annotations

from loadmaster.jobs.frameworks import Facts

NAME = "exllama"


def facts(version: tuple[int, ...] | None) -> Facts:
    """What its first version does."""
    return Facts(
        cache="static",
        native_activations=True,
        attention="sdpa",
        gptq_kernel="exllama",
        gptq_other_kernel="exllama",
    )
