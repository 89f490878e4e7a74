"""Whether the simulated device counts right on this build of torch: a few programs whose bytes are known by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch

from loadmaster.dryrun.session import Session
from loadmaster.errors import LoadmasterError
from loadmaster.units import MIB

_passed: list[bool] = []


class SelfTestError(LoadmasterError):
    """This build of torch does something that a dry run doesn't know."""

    def __init__(self, what: str, expected_bytes: int | None = None, found_bytes: int | None = None) -> None:
        figures = (
            "" if expected_bytes is None else f" takes {found_bytes:,} bytes instead of {expected_bytes:,}"
        )
        super().__init__(
            f"a dry run can't be trusted on torch {torch.__version__}: {what}{figures}",
            hint="it works with torch 2.6 to 2.13 on Linux; `loadmaster plan` needs no torch at all",
        )


def check() -> None:
    """Run the programs once per process; raises SelfTestError where bytes are off, UnknownTorchError where nothing runs."""
    if _passed:
        return
    for program in (_factory, _moved, _autocast, _attention, _optimizer):
        with Session() as session:
            _compare(program, session)
    _passed.append(True)


def _compare(program: Callable[[Session], dict[str, tuple[int, int]]], session: Session) -> None:
    try:
        figures = program(session)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise SelfTestError(f"{program.__name__[1:]} fails with {type(error).__name__}: {error}") from error
    for what, (expected_bytes, found_bytes) in figures.items():
        if expected_bytes != found_bytes:
            raise SelfTestError(what, expected_bytes, found_bytes)


def _factory(session: Session) -> dict[str, tuple[int, int]]:
    kept = torch.empty(1000, device="cuda")  # 4,000 B in blocks of 512
    return {"torch.empty": (4096, torch.cuda.memory_allocated()), "its device": (1, int(kept.is_cuda))}


def _moved(session: Session) -> dict[str, tuple[int, int]]:
    kept = torch.ones(3).to("cuda")
    return {"Tensor.to": (512, torch.cuda.memory_allocated()), "its sum": (3, int(kept.sum().item()))}


def _autocast(session: Session) -> dict[str, tuple[int, int]]:
    """A linear layer in float16, forward and backward."""
    weight = torch.nn.Parameter(torch.empty(2048, 512, device="cuda"))  # 4 MiB
    x = torch.empty(512, 512, device="cuda")  # 1 MiB
    torch.mm(x, x.t())  # cuBLAS takes its workspace
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=torch.float16):
        y = torch.nn.functional.linear(x, weight)
        inside = torch.cuda.memory_allocated()
    half = y.dtype == torch.float16 and y.device.type == "cuda"
    y.sum().backward()
    grad = weight.grad
    return {
        # The cast weight 2 MiB (kept by autocast), the cast input 1/2, the output 2.
        "autocast": (4 * MIB + MIB // 2, inside - before),
        "its type": (1, int(half)),
        "a gradient": (4 * MIB, 0 if grad is None else grad.untyped_storage().nbytes()),
    }


def _attention(session: Session) -> dict[str, tuple[int, int]]:
    """Flash attention: output, and a float32 log-sum-exp per head and position; two numbers of the random generator."""
    q = torch.empty(2, 4, 160, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    taken = torch.cuda.memory_allocated() - before
    rows = 2 * 4 * 160
    expected_bytes = rows * 64 * 2 + rows * 4 + 512 + 512
    return {
        "flash attention": (expected_bytes, taken),
        "its output": (rows * 64 * 2, out.untyped_storage().nbytes()),
    }


def _optimizer(session: Session) -> dict[str, tuple[int, int]]:
    """AdamW with foreach kernels, CUDA's default: two moments, and a temporary as large as all parameters (the for-loop needs
    three of one parameter)."""
    params = [torch.nn.Parameter(torch.empty(512, 512, device="cuda")) for _ in range(6)]  # 1 MiB each
    for param in params:
        param.grad = torch.empty_like(param)
    optimizer = torch.optim.AdamW(params)
    before = torch.cuda.memory_allocated()
    optimizer.step()
    after = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    return {
        "AdamW's states": (12 * MIB, after - before),
        "AdamW's temporaries": (6 * MIB, torch.cuda.max_memory_allocated() - after),
    }
