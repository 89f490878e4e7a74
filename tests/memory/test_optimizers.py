"""Every optimizer that can be run here against the real one, storage by storage; the others against their papers' arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.arrays import rounded
from loadmaster.jobs import optimizers
from loadmaster.jobs.job import Optimizer
from loadmaster.jobs.optimizers._step import Trained

SHAPES = [(256, 128), (512, 128), (128,), (128, 512), (1024, 128), (96,), (4, 64, 32)]


def tensors(shapes: list[tuple[int, ...]], dtype: str) -> list[Trained]:
    found = []
    for shape in shapes:
        elements = 1
        for side in shape:
            elements *= side
        found.append(Trained(elements, dtype, shape, 1, len(shape) == 2))
    return found


def said(
    name: str, implementation: str, shapes: list[tuple[int, ...]], dtype: str, rank: int | None = None
) -> Any:
    module, how = optimizers.find(name), Optimizer(name=name, implementation=implementation, rank=rank)  # type: ignore[arg-type]
    found = tensors(shapes, dtype)
    states = [sorted((size for size in module.states(t, how) if size), reverse=True) for t in found]
    return states, module.step_bytes(found, how)


REAL = {
    "adamw": ("AdamW", {}), "nadam": ("NAdam", {}), "radam": ("RAdam", {}), "adagrad": ("Adagrad", {}),
    "rmsprop": ("RMSprop", {}), "sgd": ("SGD", {"lr": 0.1}), "sgdm": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "torch_adafactor": ("Adafactor", {}),
}  # fmt: skip
CASES = [(name, kind) for name in REAL for kind in optimizers.find(name).IMPLEMENTATIONS]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_torch(name: str, implementation: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.support.optimtrace import measure

    kind, options = REAL[name]
    options = {**options, "foreach": implementation == "foreach"}
    if implementation == "fused":
        options = {**options, "fused": True}
    real = measure(lambda p: getattr(torch.optim, kind)(p, **options), SHAPES, getattr(torch, dtype))
    states, temporary = said(name, implementation, SHAPES, dtype)
    assert states == real.states
    assert temporary == real.temporary


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_muon(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.support.optimtrace import measure

    matrices = [shape for shape in SHAPES if len(shape) == 2]
    real = measure(torch.optim.Muon, matrices, getattr(torch, dtype))
    states, temporary = said("muon", "for-loop", matrices, dtype)
    assert states == real.states
    assert temporary == real.temporary


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adafactor_of_transformers(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.support.optimtrace import measure
    from transformers.optimization import Adafactor

    real = measure(Adafactor, SHAPES, getattr(torch, dtype))
    states, temporary = said("adafactor", "for-loop", SHAPES, dtype)
    assert states == real.states
    assert temporary == real.temporary


def test_galore_is_as_in_its_paper() -> None:
    """arXiv:2403.03507 table 1: of a matrix m × n (m ≤ n), optimizer states mr + 2nr."""
    m, n, r = 512, 2048, 128
    for shape in ((m, n), (n, m)):
        ((states,), temporary) = said("galore_adamw", "for-loop", [shape], "bfloat16", r)
        assert sum(states) == 2 * (m * r + 2 * n * r)
        assert temporary >= 4 * m * n + 4 * (
            m * n + m * m
        )  # float32 gradient, singular vectors of both sides


@pytest.mark.parametrize(
    ("name", "per_value"),
    [
        ("lion", 4),
        ("lion_8bit", 1),
        ("paged_adamw", 0),
        ("paged_adamw_8bit", 0),
        ("ademamix", 12),
        ("sophia", 4),
    ],
)
def test_bytes_a_value(name: str, per_value: int) -> None:
    """A large bfloat16 matrix, scales aside (a float32 of every 256 values)."""
    module = optimizers.find(name)
    ((states,), _) = said(name, module.IMPLEMENTATIONS[0], [(4096, 4096)], "bfloat16")
    scales = sum(size for size in states if size == 4096 * 4096 // 256 * 4)
    assert sum(states) - scales == per_value * 4096 * 4096


def test_paged_states_are_out_of_pytorchs_sight() -> None:
    module = optimizers.find("paged_adamw_8bit")
    how = Optimizer(name="paged_adamw_8bit", implementation="fused")
    (large, small) = tensors([(4096, 4096), (4096,)], "bfloat16")
    assert module.paged(large, how) == 2 * 4096 * 4096
    assert sum(module.states(large, how)) == 2 * 4 * 4096 * 4096 // 256
    assert module.paged(small, how) == 0
    assert sum(rounded(size) for size in module.states(small, how)) == 2 * 4096 + 2 * 512
