"""From a batch to a loss: the model's own, or one of the job's other ways to it.

``native``, ``chunked``, ``fused`` and ``cut`` take the hidden states that go into the output projection: while the model runs,
its projection hands them through. ``fused`` follows liger_kernel 0.8 (ops/fused_linear_cross_entropy.py), ``cut``
cut_cross_entropy 25.1 (cce.py, cce_backward.py), ``chunked`` torchtune's CEWithChunkedOutputLoss: the same tensors in the same
order, with Triton's kernels left out, which allocate nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from loadmaster.dryrun.programs.batches import Batch, arguments, takes
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

IGNORED = -100


def prepare(model: Any, base: Any, job: Job) -> Own:
    """The way from batch to loss that the job names; raises BadValueError where the model's class has no such one."""
    causal = "num_logits_to_keep" in arguments(base) or "logits_to_keep" in arguments(base)
    head = base.get_output_embeddings() if hasattr(base, "get_output_embeddings") else None
    if job.loss == "hf" or (job.loss == "native" and not causal):
        return Own(model, base)
    if job.loss == "native":
        return Native(model, base)
    if not causal or not isinstance(head, torch.nn.Linear):
        raise BadValueError("loss", job.loss, f"hf or native: {type(base).__name__} has no other loss")
    return Hidden(model, base, job, head)


class Own:
    """transformers' own loss of a model's class (``hf``)."""

    def __init__(self, model: Any, base: Any) -> None:
        self.model, self.base = model, base
        self.caches = takes(base, "use_cache")

    def __call__(self, batch: Batch, cache: bool) -> tuple[Any, Any]:
        """Outputs and loss of a training batch; ``cache``: the loop left use_cache on."""
        outputs = self.model(**batch, **self.cached(cache))
        return outputs, loss_of(outputs)

    def cached(self, wanted: bool) -> dict[str, bool]:
        """Trainer turns use_cache off in training."""
        return {"use_cache": wanted} if self.caches else {}

    def evaluate(self, batch: Batch) -> Any:
        """Outputs of an evaluation batch; the class's own loss (Liger-Kernel's forward too is the stock one in eval())."""
        return self.model(**batch, **self.cached(True))


class Native(Own):
    """Cross-entropy on the logits as they are, without a float32 copy."""

    def __call__(self, batch: Batch, cache: bool) -> tuple[Any, Any]:
        """Outputs and loss."""
        labels = batch.pop("labels")
        outputs = self.model(**batch, **self.cached(cache))
        logits = outputs.logits
        return outputs, functional.cross_entropy(logits.view(-1, logits.shape[-1]), shifted(labels))


class Hidden(Own):
    """Losses that do the output projection themselves."""

    def __init__(self, model: Any, base: Any, job: Job, head: Any) -> None:
        super().__init__(model, base)
        self.job, self.head = job, head
        self.texts = [base.config, getattr(base.config, "text_config", None)]

    def __call__(self, batch: Batch, cache: bool) -> tuple[Any, Any]:
        """Outputs (their logits are the hidden states) and loss."""
        labels = batch.pop("labels")
        caps = [getattr(each, "final_logit_softcapping", None) for each in self.texts]
        # The kernels cap logits themselves.
        self._cap([None] * len(caps))
        self.head.forward = _through
        try:
            outputs = self.model(**batch, **self.cached(cache))
        finally:
            del self.head.forward
            self._cap(caps)
        hidden = outputs.logits
        if self.job.loss == "chunked":
            return None, self._chunked(hidden, labels)
        outputs.logits = None
        flat, target = hidden.view(-1, hidden.shape[-1]), shifted(labels)
        del hidden
        kind = Fused if self.job.loss == "fused" else Cut
        if kind is Cut and torch.is_autocast_enabled("cuda"):
            flat = flat.to(torch.get_autocast_dtype("cuda"))
        return None, kind.apply(flat, self.head.weight, target)  # type: ignore[no-untyped-call]

    def _cap(self, caps: list[Any]) -> None:
        for config, cap in zip(self.texts, caps, strict=True):
            if hasattr(config, "final_logit_softcapping"):
                config.final_logit_softcapping = cap

    def _chunked(self, hidden: Any, labels: Any) -> Any:
        """torchtune: the transformer gives a list of chunks of logits, the loss takes one after the other as float32."""
        count = self.job.loss_chunks
        logits = [self.head(part) for part in hidden.chunk(count, dim=1)]
        targets = [part.reshape(-1) for part in shifted(labels).view(labels.shape).chunk(count, dim=1)]
        flat = [part.reshape(-1, part.shape[-1]) for part in logits]
        total: Any = 0.0
        for part, target in zip(flat, targets, strict=True):
            total = total + functional.cross_entropy(part.float(), target, reduction="sum")
        return total / labels.numel()


def _through(hidden: Any) -> Any:
    return hidden


def shifted(labels: Any) -> Any:
    """Each token's successor, flat (loss_utils.py ForCausalLMLoss)."""
    return functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)


def loss_of(outputs: Any) -> Any:
    """The loss in a model's outputs; the sum of the first output where it has none."""
    found = getattr(outputs, "loss", None)
    if found is not None:
        return found
    first = outputs[0] if not isinstance(outputs, torch.Tensor) else outputs
    return first.float().sum()


class Fused(torch.autograd.Function):
    """Liger-Kernel's fused_linear_cross_entropy: gradients are made in forward, a chunk of logits at a time."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, target: Any) -> Any:
        """fused_linear_cross_entropy_forward."""
        rows, width = hidden.shape
        vocab = weight.shape[0]
        wanted = -(-rows // -(-vocab // width))
        chunk = min(1 << (wanted - 1).bit_length(), rows)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad and hidden.requires_grad else None
        losses = torch.zeros(rows, dtype=torch.float32, device=hidden.device)
        plain = hidden.dtype == weight.dtype and (
            not torch.is_autocast_enabled("cuda") or hidden.dtype == torch.get_autocast_dtype("cuda")
        )
        buffer = torch.empty((chunk, vocab), dtype=hidden.dtype, device=hidden.device) if plain else None
        for first in range(0, rows, chunk):
            part = hidden[first : first + chunk]
            if buffer is not None:
                logits = buffer[: part.shape[0]]
                torch.mm(part, weight.t(), out=logits)
            else:
                logits = part @ weight.t()
            if hidden.requires_grad:
                if buffer is not None:
                    torch.mm(logits, weight, out=grad_hidden[first : first + chunk])
                else:
                    grad_hidden[first : first + chunk] = logits @ weight
            if grad_weight is not None:
                _add_gradient(grad_weight, logits, part)
            del logits, part
        del buffer
        ctx.save_for_backward(grad_hidden.detach(), None if grad_weight is None else grad_weight.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """fused_linear_cross_entropy_backward scales them in place."""
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden, grad_weight, None


def _add_gradient(grad_weight: Any, logits: Any, part: Any) -> None:
    """addmm(out=grad_weight), which sums 16-bit products in the gradient's own format; else the product makes a float32 copy."""
    halves = (torch.float16, torch.bfloat16)
    if logits.dtype in halves and grad_weight.dtype in (torch.float32, logits.dtype):
        same = part if part.dtype == logits.dtype else part.to(logits.dtype)
        del same
    else:
        product = torch.mm(logits.t(), part).float()
        grad_weight += product


class Cut(torch.autograd.Function):
    """Cut cross-entropy: logits stay in registers."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, target: Any) -> Any:
        """cce_lse_forward_kernel and indexed_neg_dot_forward_kernel."""
        valid = torch.empty(target.shape, dtype=torch.int32, device=hidden.device)
        rows, vocab = hidden.shape[0], weight.shape[0]
        lse = hidden.new_empty(rows, dtype=torch.float32)
        mean = hidden.new_empty(vocab, dtype=torch.float32)
        dots = hidden.new_empty(rows, dtype=torch.float32)
        loss = dots.add_(lse).mean()
        ctx.save_for_backward(hidden, weight, lse, target, valid, mean)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """cce_backward_kernel: both gradients in the format of the hidden states, the second cast to the weight's."""
        hidden, weight, _, _, _, mean = ctx.saved_tensors
        order = torch.argsort(mean).to(torch.int32)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=hidden.dtype) if ctx.needs_input_grad[1] else None
        locks = -(-weight.shape[1] // 64)
        held = [
            torch.zeros((-(-count // locks), locks), dtype=torch.int32, device=hidden.device)
            for count in (hidden.shape[0], weight.shape[0])
        ]
        del order, held
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None
