"""What elements are on average, operator by operator: enough to spread tokens evenly over experts and to call losses finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Rule = Callable[..., "float | None"]


def _same(expected: Any, known: Any, x: Any, *_: Any, **__: Any) -> float | None:
    """Views, copies and choices of elements."""
    found: float | None = expected(x)
    return found


def _sum(expected: Any, known: Any, x: Any, dim: Any = None, *_: Any, **__: Any) -> float | None:
    mean = expected(x)
    if mean is None:
        return None
    dims = range(x.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return float(mean) * float(math.prod(int(x.shape[d]) for d in dims))


def _any(expected: Any, known: Any, x: Any, *_: Any, **__: Any) -> float | None:
    mean = expected(x)
    return None if mean is None else float(float(mean) > 0)


def _all(expected: Any, known: Any, x: Any, *_: Any, **__: Any) -> float | None:
    mean = expected(x)
    return None if mean is None else float(mean >= 1)


def _not(expected: Any, known: Any, x: Any, *_: Any, **__: Any) -> float | None:
    mean = expected(x)
    return None if mean is None else 1 - float(mean)


def _product(expected: Any, known: Any, x: Any, y: Any, *_: Any, **__: Any) -> float | None:
    left = expected(x)
    right = expected(y) if isinstance(y, torch.Tensor) else y
    if left is None or right is None or isinstance(right, complex):
        return None
    return float(left) * float(right)


def _either(expected: Any, known: Any, x: Any, y: Any, *_: Any, **__: Any) -> float | None:
    left, right = expected(x), expected(y)
    return None if left is None or right is None else max(float(left), float(right))


def _compared(test: Callable[[float, float], bool]) -> Rule:
    def rule(expected: Any, known: Any, x: Any, y: Any, *_: Any, **__: Any) -> float | None:
        mean = expected(x)
        return None if mean is None or isinstance(y, torch.Tensor) else float(test(float(mean), float(y)))

    return rule


def _equal(expected: Any, known: Any, x: Any, y: Any, *_: Any, **__: Any) -> float | None:
    """A tensor equals itself (isfinite and isnan ask so); of E classes side by side each is met once in E."""
    if x is y:
        return 1.0
    if not isinstance(y, torch.Tensor):
        return None
    for one, other in ((x, y), (y, x)):
        classes = known(one) if hasattr(one, "fake_mode") else one
        if (
            classes is not None
            and classes.dim() >= 1
            and classes.shape[-1] == classes.numel() > 1
            and other.shape[-1:] in ((1,), ())
        ):
            return 1 / float(classes.numel())
    return None


def _unequal(expected: Any, known: Any, x: Any, y: Any, *_: Any, **__: Any) -> float | None:
    if x is y:
        return 0.0
    return 1.0 if not isinstance(y, torch.Tensor) and isinstance(y, float) and math.isinf(y) else None


def _constant(value: float) -> Rule:
    return lambda *_, **__: value


_SAME = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.select.int, aten.slice.Tensor, aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.index.Tensor, aten.index_select.default, aten.clone.default, aten._to_copy.default, aten.detach.default,
    aten.alias.default, aten.as_strided.default, aten.split.Tensor, aten.unbind.int, aten.mean.default, aten.mean.dim,
    aten.amax.default, aten.max.default, aten.min.default, aten.abs.default, aten.gather.default, aten.flatten.using_ints,
)  # fmt: skip
EXPECTED: dict[Any, Rule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _sum),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _all),
    **dict.fromkeys((aten.logical_not.default, aten.bitwise_not.default), _not),
    **dict.fromkeys(
        (aten.mul.Tensor, aten.mul.Scalar, aten.logical_and.default, aten.bitwise_and.Tensor), _product
    ),
    **dict.fromkeys((aten.logical_or.default, aten.bitwise_or.Tensor), _either),
    aten.gt.Scalar: _compared(lambda x, y: x > y),
    aten.ge.Scalar: _compared(lambda x, y: x >= y),
    aten.lt.Scalar: _compared(lambda x, y: x < y),
    aten.le.Scalar: _compared(lambda x, y: x <= y),
    aten.eq.Tensor: _equal,
    aten.ne.Tensor: _unequal,
    aten.ne.Scalar: _unequal,
    aten.isnan.default: _constant(0.0),
    aten.isinf.default: _constant(0.0),
}
