"""Operators whose results depend on data in their shape: exact where the data is known, else the largest they can be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.dryrun.known import Known, known

aten = torch.ops.aten


def answers(session: Any) -> dict[Any, Callable[..., Any]]:
    """By operator, what stands for it on the device of a session."""

    def unique(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return _known(aten._unique2.default, tensor, *args, **kwargs) or _distinct(
            session, tensor, tensor.numel()
        )

    def unique_consecutive(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return _known(aten.unique_consecutive.default, tensor, *args, **kwargs) or _distinct(
            session, tensor, tensor.numel()
        )

    def bincount(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
        found = _known(aten.bincount.default, tensor, weights, minlength)
        if found is not None:
            return found
        if not minlength:
            raise RefusedError(
                "aten::bincount makes a shape out of values that a dry run does not have: give it minlength"
            )
        session.values.note("how many bins there are", str(minlength))
        dtype = torch.long if weights is None else torch.double
        return torch.empty(minlength, dtype=dtype, device=tensor.device)

    choices = [
        getattr(getattr(aten, name), overload)
        for name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
        for overload in ("default", "Tensor")
        if hasattr(aten, name)
    ]
    return {
        aten._unique2.default: unique,
        aten.unique_consecutive.default: unique_consecutive,
        aten.bincount.default: bincount,
        # LossCTC.cpp: cuDNN's loss wants lengths and targets in int32 on the host.
        **dict.fromkeys(choices, lambda *_, **__: False),
        **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
        **dict.fromkeys(
            (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor), _ctc_loss_backward
        ),
        aten._pack_padded_sequence.default: _packed,
        aten._thnn_fused_gru_cell.default: _gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    }


def _known(func: Any, *args: Any, **kwargs: Any) -> Any:
    """The results on the host's copies, on the device; None where one is missing."""
    real = []
    for each in args:
        value = known(each) if isinstance(each, FakeTensor) else each
        if value is None and each is not None:
            return None
        real.append(value)
    with no_dispatch():
        found = func(*real, **kwargs)
    device = args[0].device
    placed = [_placed(each, device) for each in (found if isinstance(found, tuple) else (found,))]
    return tuple(placed) if isinstance(found, tuple) else placed[0]


def _placed(value: torch.Tensor, device: torch.device) -> Any:
    out = torch.empty(tuple(value.shape), dtype=value.dtype, device=device)
    out._known = Known(value)  # type: ignore[attr-defined]
    return out


def _distinct(session: Any, tensor: Any, count: int) -> Any:
    """Values, where each is found, how often: as if all were distinct."""
    session.values.note("how many values are distinct", "all")
    places = torch.empty(tensor.shape, dtype=torch.long, device=tensor.device)
    return tensor.new_empty(count), places, torch.empty(count, dtype=torch.long, device=tensor.device)


def _packed(padded: Any, lengths: Any, batch_first: bool) -> Any:
    """PackedSequence.cpp _pack_padded_sequence: the time steps of equally many sequences are cut out together and joined. How
    many there are in each step is a tensor of the host's."""
    values = known(lengths) if isinstance(lengths, FakeTensor) else lengths
    if values is None:
        raise RefusedError("aten::_pack_padded_sequence needs lengths, which a dry run does not have here")
    if batch_first:
        padded = padded.transpose(0, 1)
    with no_dispatch():
        ends = values.tolist()
        if any(one < other for one, other in pairwise(ends)):
            raise RuntimeError(
                "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True."
            )
        counts = [sum(end > step for end in ends) for step in range(ends[0])]
        batches = torch.tensor(counts)
    parts, begin = [], 0
    for end in sorted(set(ends)):
        part = padded[begin:end, : counts[begin]].contiguous()
        parts.append(part.view(-1, *padded.shape[2:]))
        begin = end
    del part
    return torch.cat(parts), batches


def _gru_cell(input_gates: Any, hidden_gates: Any, hidden: Any, *_: Any) -> Any:
    """RNN.cu _thnn_fused_gru_cell_cuda: the next state and a workspace of five gates."""
    return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], hidden.shape[1] * 5)


def _gru_cell_backward(grad: Any, workspace: Any, has_bias: bool) -> Any:
    """RNN.cu _thnn_fused_gru_cell_backward_cuda."""
    rows, size = grad.shape
    gates = [workspace.new_empty(rows, 3 * size) for _ in range(2)]
    biases = [each.sum(0) for each in gates] if has_bias else [None, None]
    return (*gates, torch.empty_like(grad), *biases)


def _ctc_loss(log_probs: Any, targets: Any, _: Any, lengths: Any, *__: Any) -> Any:
    """LossCTC.cu ctc_loss_gpu_template: losses, and a row of 2 × longest target + 1 for each step and sequence."""
    if isinstance(lengths, torch.Tensor):
        values = known(lengths) if isinstance(lengths, FakeTensor) else lengths
        longest = targets.shape[-1] if values is None else int(values.max())
    else:
        longest = max(lengths)
    steps, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _ctc_loss_backward(*args: Any) -> Any:
    """LossCTC.cu ctc_loss_backward_gpu_template: as many betas as alphas, given back at the end."""
    log_probs, alpha = args[1], args[6]
    beta = torch.empty_like(alpha)
    grad = torch.empty_like(log_probs)
    del beta
    return grad
