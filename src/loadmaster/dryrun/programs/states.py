"""Stand-ins for optimizers of other packages: the tensors that their steps keep and make, in the order they make them.

bitsandbytes/optim/optimizer.py, torchao/optim, galore_torch, lion_pytorch and github.com/Liuhong99/Sophia: fused kernels allocate
nothing, so only states are made; loops written in PyTorch are run as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

SMALLEST_8BIT = 4096
SMALLEST_PAGED = 100_000
BLOCK = 256


class Bitsandbytes(torch.optim.Optimizer):
    """``moments`` states of 8 or 32 bits; ``paged``: large ones come from cudaMallocManaged, which PyTorch's counters never
    see (``managed_bytes`` adds them up); ``wide``: ids of parameters that keep 32-bit states; ``stacked``: AdEMAMix's first
    state holds two momenta."""

    def __init__(
        self, params: list[Any], *, moments: int, bits: int, paged: bool = False, stacked: bool = False,
        wide: Iterable[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": 1e-3})
        self.moments, self.bits, self.paged, self.stacked, self.wide = (
            moments,
            bits,
            paged,
            stacked,
            set(wide),
        )
        self.managed_bytes = 0
        self.maps: list[Any] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One kernel a tensor: nothing but states is allocated."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not self.state[param]:
                    self._init_state(param)

    def _init_state(self, param: Any) -> None:
        state = self.state[param]
        state["step"] = 0
        narrow = self.bits == 8 and id(param) not in self.wide and param.numel() >= SMALLEST_8BIT
        for number in range(1, self.moments + 1):
            rows = 2 if self.stacked and number == 1 else 1
            dtype = torch.uint8 if narrow else torch.float32
            state[f"state{number}"] = self._buffer(param, dtype, rows)
            if narrow:
                while len(self.maps) < self.moments:
                    self.maps.append(torch.zeros(256, device=param.device))
                blocks = -(-param.numel() // BLOCK)
                state[f"absmax{number}"] = torch.zeros(blocks * rows, device=param.device)

    def _buffer(self, param: Any, dtype: torch.dtype, rows: int) -> Any:
        shape = (rows, *param.shape) if rows > 1 else tuple(param.shape)
        if not self.paged or param.numel() < SMALLEST_PAGED:
            return torch.zeros(shape, dtype=dtype, device=param.device)
        self.managed_bytes += rows * param.numel() * (1 if dtype == torch.uint8 else 4)
        return None


class Torchao(torch.optim.Optimizer):
    """torchao's AdamW4bit and AdamWFp8: codes, scales and, of the 4-bit one, its table; ``step`` is compiled."""

    def __init__(self, params: list[Any], *, bits: int, block: int) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.bits, self.block = bits, block

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Reads and writes states in place."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and not self.state[param]:
                    for name in ("exp_avg", "exp_avg_sq"):
                        self._new_buffer(param, name)

    def _new_buffer(self, param: Any, name: str) -> None:
        """optim/adam.py _new_buffer."""
        state, count = self.state[param], param.numel()
        if count < SMALLEST_8BIT or count % self.block:
            state[name] = torch.zeros_like(param)
            return
        device = param.device
        if self.bits == 4:
            state[name] = torch.zeros(count // 2, dtype=torch.uint8, device=device)
            state[f"{name}_qmap"] = torch.zeros(16, device=device)
        else:
            state[name] = torch.zeros(param.shape, dtype=torch.float8_e4m3fn, device=device)
        state[f"{name}_scale"] = torch.zeros(count // self.block, device=device)


class Lion(torch.optim.Optimizer):
    """lion_pytorch's loop."""

    def __init__(self, params: list[Any]) -> None:
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """lion_pytorch.py update_fn."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["exp_avg"] = torch.zeros_like(param)
                average = state["exp_avg"]
                update = average.clone().mul_(0.9).add(param.grad, alpha=0.1).sgn_()
                param.add_(update, alpha=-group["lr"])
                del update
                average.mul_(0.99).add_(param.grad, alpha=0.01)


class Sophia(torch.optim.Optimizer):
    """SophiaG's loop; its Hessian is renewed every ten steps in a pass of its own, which isn't run here."""

    def __init__(self, params: list[Any]) -> None:
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """sophia.py _single_tensor_sophiag."""
        ratio = None
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["exp_avg"], state["hessian"] = torch.zeros_like(param), torch.zeros_like(param)
                average, hessian = state["exp_avg"], state["hessian"]
                param.mul_(1 - group["lr"] * 0.1)
                average.mul_(0.965).add_(param.grad, alpha=0.035)
                ratio = (average.abs() / (0.04 * 5120 * hessian + 1e-15)).clamp(None, 1)
                param.addcmul_(average.sign(), ratio, value=-group["lr"])
        del ratio


class Galore(torch.optim.Optimizer):
    """galore_torch's AdamW: gradients of ``projected`` matrices (ids) are projected to ``rank`` dimensions."""

    def __init__(self, params: list[Any], *, rank: int, projected: Iterable[int]) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.rank, self.projected = rank, set(projected)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """adamw.py step; projectors are computed in the first."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                grad, state = param.grad, self.state[param]
                low = id(param) in self.projected
                if low:
                    if "projector" not in state:
                        state["projector"] = self._projector(grad)
                    grad = self._project(grad, state["projector"])
                if "exp_avg" not in state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(grad), torch.zeros_like(grad)
                average, square = state["exp_avg"], state["exp_avg_sq"]
                average.mul_(0.9).add_(grad, alpha=0.1)
                square.mul_(0.999).addcmul_(grad, grad, value=0.001)
                denom = square.sqrt().add_(1e-6)
                norm_grad = average / denom
                if low:
                    norm_grad = self._back(norm_grad, state["projector"])
                param.add_(norm_grad, alpha=-group["lr"])

    def _projector(self, grad: Any) -> Any:
        """galore_projector.py get_orthogonal_matrix."""
        matrix = grad if grad.dtype == torch.float32 else grad.float()
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        found = right[: self.rank, :] if grad.shape[0] >= grad.shape[1] else left[:, : self.rank]
        del values
        return found if grad.dtype == torch.float32 else found.type(grad.dtype)

    @staticmethod
    def _project(grad: Any, matrix: Any) -> Any:
        return grad @ matrix.t() if grad.shape[0] >= grad.shape[1] else matrix.t() @ grad

    @staticmethod
    def _back(low: Any, matrix: Any) -> Any:
        return (low @ matrix if low.shape[0] >= low.shape[1] else matrix @ low) * 0.25
