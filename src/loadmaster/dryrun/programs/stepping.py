"""What follows a forward pass: backward, clipping, the optimizer's step, and gradients forgotten; with copies of 16-bit weights,
with updates inside backward, or with states in host memory where the job says so."""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.programs import optimizers
from loadmaster.dryrun.session import Session
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job
from loadmaster.units import GIB

MAX_GRAD_NORM = 1.0
"""transformers' Trainer: max_grad_norm."""


def prepare(params: list[Any], base: Any, job: Job, session: Session) -> Stepper:
    """The way of stepping that the job names, on the parameters that are trained."""
    if not params:
        raise BadValueError(
            "freeze", ",".join(job.frozen), "less than all of the model: nothing is left to train"
        )
    if "optimizer" in job.offload:
        return HostStepper(params, base, job, session)
    if job.optimizer_in_backward:
        return BackwardStepper(params, base, job, session)
    if job.precision.master is not None:
        return MasterStepper(params, base, job, session)
    return Stepper(params, base, job, session)


class Stepper:
    """A plain step, with a GradScaler where autocast is float16."""

    def __init__(self, params: list[Any], base: Any, job: Job, session: Session) -> None:
        self.params, self.job, self.session = params, job, session
        self.make = optimizers.maker(base, job)
        self.scaler = torch.amp.GradScaler("cuda") if job.precision.autocast == "float16" else None
        self.optimizer: Any = self._optimizer()
        if "gradients" in job.offload:
            for param in params:
                param.register_post_accumulate_grad_hook(_forget)

    def _optimizer(self) -> Any:
        return self.make(self.params)

    def backward(self, loss: Any) -> None:
        """Gradients of one micro-batch."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self) -> None:
        """Clip, update, forget the gradients."""
        number = self.session.tracker.place.step
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.params, MAX_GRAD_NORM)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        # The session takes what follows a step for the next pass.
        self.session.tracker.enter("optimizer step", number)
        self.optimizer.zero_grad(set_to_none=True)

    def notes(self) -> tuple[str, ...]:
        """What the report says of states that the device's counters don't show."""
        managed = getattr(self.optimizer, "managed_bytes", 0)
        if not managed:
            return ()
        size = f"{managed / GIB:.2f} GiB of managed memory, on the card while it has room"
        return (f"paged optimizer states: {size}; PyTorch's counters, and the figures here, leave it out",)


class MasterStepper(Stepper):
    """The optimizer works on float32 copies of 16-bit weights (apex, DeepSpeed, Megatron-LM); ``precision.gradients``: every
    gradient is added to a buffer of that format as soon as it is made (Megatron-LM's main_grad)."""

    def _optimizer(self) -> Any:
        kind = getattr(torch, self.job.precision.master or "float32")
        tracker = self.session.tracker
        self.masters: list[Any] = []
        self.buffers: list[Any] = []
        for param in self.params:
            own = param.detach().to(kind) if param.dtype in (torch.float16, torch.bfloat16) else param
            if own is not param:
                tracker.tag(own, "optimizer states", self.session.watch.owners.get(id(param)))
                own.requires_grad_(True)
            self.masters.append(own)
        if self.job.precision.gradients is not None:
            buffer_kind = getattr(torch, self.job.precision.gradients)
            for param in self.params:
                buffer = torch.zeros(param.shape, dtype=buffer_kind, device="cuda")
                tracker.tag(buffer, "gradients", self.session.watch.owners.get(id(param)))
                self.buffers.append(buffer)
                param.register_post_accumulate_grad_hook(self._adder(buffer))
        return self.make(self.masters)

    @staticmethod
    def _adder(buffer: Any) -> Any:
        def add(param: Any) -> None:
            with torch.no_grad():
                buffer.add_(param.grad)
            param.grad = None

        return add

    def step(self) -> None:
        """Gradients in the copies' format, the update, the weights from the copies."""
        number = self.session.tracker.place.step
        sources = self.buffers or [param.grad for param in self.params]
        for own, param, grad in zip(self.masters, self.params, sources, strict=True):
            if own is not param and grad is not None:
                own.grad = grad.to(own.dtype)
        del sources
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_GRAD_NORM)
        self.optimizer.step()
        self.session.tracker.enter("optimizer step", number)
        with torch.no_grad():
            for own, param in zip(self.masters, self.params, strict=True):
                if own is not param:
                    param.copy_(own)
                    own.grad = None
                param.grad = None
            for buffer in self.buffers:
                buffer.zero_()


class BackwardStepper(Stepper):
    """Each parameter is updated as soon as its gradient is there, which is then freed (torchtune, LOMO)."""

    def _optimizer(self) -> Any:
        self.each = {id(param): self.make([param]) for param in self.params}
        for param in self.params:
            param.register_post_accumulate_grad_hook(self._update)
        return None

    def _update(self, param: Any) -> None:
        optimizer = self.each[id(param)]
        # Without the hooks of a step: this one is inside backward.
        step = type(optimizer).step
        getattr(step, "__wrapped__", step)(optimizer)
        param.grad = None
        for value in optimizer.state[param].values():
            self.session.tracker.tag(value, "optimizer states", self.session.watch.owners.get(id(param)))

    def step(self) -> None:
        """Nothing is left to do."""
        self.session.watch.steps += 1


class HostStepper(Stepper):
    """States and updates in host memory (DeepSpeed's CPUAdam): the device sees neither."""

    def _optimizer(self) -> Any:
        return None

    def step(self) -> None:
        """Gradients go to the host, new weights come back in place."""
        for param in self.params:
            param.grad = None
        self.session.watch.steps += 1


def _forget(param: Any) -> None:
    """Its gradient goes to the host."""
    param.grad = None
