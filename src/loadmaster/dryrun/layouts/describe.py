"""Parallel: over how many GPUs a dry run splits what, from the command line's words. No torch here."""

from __future__ import annotations

from typing import Any, Literal

from loadmaster.errors import BadValueError
from loadmaster.records import Record

Strategy = Literal["ddp", "fsdp2"]
STRATEGIES = ("ddp", "fsdp2")
DTYPES = {
    "float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16",
    "fp16": "float16",
}  # fmt: skip
"""Spellings of the formats that parameters are gathered and gradients reduced in."""


class Parallel(Record, kw_only=True):
    """How a job is split over GPUs. Ranks are numbered as ``init_device_mesh`` does it: replicas outermost, then shards, then
    tensor-parallel ranks, which are neighbours."""

    data_parallel: int = 1
    """Ranks that see different data: ``replicate`` × ``fsdp``."""
    fsdp: int = 1
    """Over how many ranks parameters, gradients and optimizer states are sharded."""
    replicate: int = 1
    """Copies of the whole: DDP's ranks, or HSDP's outer dimension."""
    tensor: int = 1
    strategy: Strategy = "fsdp2"
    reshard: bool | int = True
    """FSDP2's reshard_after_forward of the layers: True frees what was gathered after each layer's forward, False keeps it
    until backward, an int keeps it sharded over so many ranks."""
    param_dtype: str | None = None
    """What FSDP2 gathers and computes in (MixedPrecisionPolicy); None: as the parameters are."""
    reduce_dtype: str | None = None
    """What it reduces gradients in; None: as they are."""
    offload: bool = False
    """FSDP2's CPUOffloadPolicy: shards, gradients and optimizer states live in host memory."""
    bucket_view: bool = False
    """DDP's gradient_as_bucket_view."""
    bucket_mb: int = 25
    """DDP's bucket_cap_mb."""
    static_graph: bool = False

    @property
    def gpus(self) -> int:
        """How many GPUs the job takes."""
        return self.data_parallel * self.tensor

    def __str__(self) -> str:
        parts = [f"{self.gpus} GPUs"]
        if self.data_parallel > 1:
            parts.append("DDP" if self.strategy == "ddp" else "FSDP2" if self.replicate == 1 else "HSDP")
        if self.strategy == "fsdp2" and self.replicate > 1:
            parts.append(f"{self.replicate} replicas of {self.fsdp} shards")
        if self.tensor > 1:
            parts.append(f"tensor parallel {self.tensor}")
        return ", ".join(parts)


def parse_parallel(
    *,
    gpus: int,
    strategy: str = "fsdp2",
    tensor: int = 1,
    replicate: int | None = None,
    reshard: str | bool | int = True,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    offload: bool = False,
    bucket_view: bool = False,
    bucket_mb: int = 25,
    static_graph: bool = False,
) -> Parallel:
    """A Parallel from the command line's words: ``--gpus 8 --strategy fsdp2 --tensor-parallel 2 --reshard false``.

    Raises BadValueError where the numbers don't go together, before anything is built.
    """
    if strategy not in STRATEGIES:
        raise BadValueError("--strategy", strategy, " or ".join(STRATEGIES))
    for name, value in (("--gpus", gpus), ("--tensor-parallel", tensor), ("--replicate", replicate or 1)):
        if value < 1:
            raise BadValueError(name, value, "at least 1")
    if gpus % tensor:
        raise BadValueError("--tensor-parallel", tensor, f"a divisor of the {gpus} GPUs: {_divisors(gpus)}")
    data = gpus // tensor
    ddp = strategy == "ddp"
    copies = data if ddp else (replicate or 1)
    if data % copies:
        raise BadValueError(
            "--replicate", copies, f"a divisor of the {data} data-parallel ranks: {_divisors(data)}"
        )
    if ddp and replicate not in (None, data):
        raise BadValueError("--replicate", replicate, f"{data} with DDP, which has a copy on every rank")
    if ddp and tensor > 1:
        raise BadValueError(
            "--strategy", strategy, "fsdp2 with --tensor-parallel: DDP doesn't take DTensor weights"
        )
    if ddp and offload:
        raise BadValueError("--offload", offload, "--strategy fsdp2: DDP offloads nothing")
    return Parallel(
        data_parallel=data,
        fsdp=data // copies,
        replicate=copies,
        tensor=tensor,
        strategy="ddp" if ddp else "fsdp2",
        reshard=_reshard(reshard, data // copies),
        param_dtype=_dtype("--param-dtype", param_dtype),
        reduce_dtype=_dtype("--reduce-dtype", reduce_dtype),
        offload=offload,
        bucket_view=bucket_view,
        bucket_mb=bucket_mb,
        static_graph=static_graph,
    )


def check_heads(parallel: Parallel, config: Any) -> None:
    """Whether tensor parallel divides the attention heads of a model's ``config``; raises BadValueError, with what would."""
    if parallel.tensor == 1:
        return
    for field in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, field, None)
        if isinstance(heads, int) and heads % parallel.tensor:
            raise BadValueError(
                "--tensor-parallel", parallel.tensor, f"a divisor of {field} ({heads}): {_divisors(heads)}"
            )


def _reshard(said: str | bool | int, shards: int) -> bool | int:
    if isinstance(said, bool):
        return said
    if isinstance(said, str) and said.lower() in ("true", "always", "yes", "false", "never", "no"):
        return said.lower() in ("true", "always", "yes")
    try:
        count = int(said)
    except ValueError:
        count = 0
    if count < 1 or shards % count:
        raise BadValueError(
            "--reshard", said, f"true, false, or a divisor of the {shards} shards: {_divisors(shards)}"
        )
    return True if count == shards else False if count == 1 else count


def _dtype(field: str, said: str | None) -> str | None:
    if said is None:
        return None
    found = DTYPES.get(said)
    if found is None:
        raise BadValueError(field, said, "float32, bfloat16 or float16")
    return found


def _divisors(number: int) -> str:
    found = [str(each) for each in range(1, number + 1) if number % each == 0]
    return ", ".join(found)
