"""Optimizers of a Job on trained parameters: torch's own, and stand-ins for other packages' (``states``)."""

from __future__ import annotations

from typing import Any

import torch

from loadmaster.dryrun.session import Session
from loadmaster.errors import BadValueError
from loadmaster.jobs.job import Job

MAX_GRAD_NORM = 1.0
"""transformers' Trainer: max_grad_norm."""


class Stepper:
    """Backward, and what a step is made of after it."""

    def __init__(self, params: list[Any], optimizer: Any, session: Session) -> None:
        self.params, self.optimizer, self.session = params, optimizer, session

    def backward(self, loss: Any) -> None:
        """Gradients of one micro-batch."""
        loss.backward()

    def step(self) -> None:
        """Clip, update, forget the gradients."""
        torch.nn.utils.clip_grad_norm_(self.params, MAX_GRAD_NORM)
        number = self.session.tracker.place.step
        self.optimizer.step()
        # The session takes what follows a step for the next pass.
        self.session.tracker.enter("optimizer step", number)
        self.optimizer.zero_grad(set_to_none=True)


def prepare(params: list[Any], base: Any, job: Job, session: Session) -> Stepper:
    """The optimizer that the job names, on its parameters."""
    if not params:
        raise BadValueError(
            "freeze", ",".join(job.frozen), "less than all of the model: nothing is left to train"
        )
    how = job.optimizer.implementation
    return Stepper(params, torch.optim.AdamW(params, foreach=how == "foreach", fused=how == "fused"), session)
