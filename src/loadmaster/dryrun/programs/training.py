"""A training step as a Job says: forward, loss, backward for each micro-batch, clipping, optimizer, evaluation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from loadmaster.dryrun.programs import batches, losses, stepping
from loadmaster.dryrun.session import Session
from loadmaster.jobs.job import Job
from loadmaster.memory.inventory import rest_dtype

MOST_MICRO_BATCHES = 2
"""Micro-batches of a step that are run: from the second on, each begins and ends with the same blocks alive."""

Progress = Callable[[str, float], None]


class Training:
    """A model on the device with what trains it."""

    def __init__(self, session: Session, model: Any, base: Any, job: Job) -> None:
        self.session, self.model, self.base, self.job = session, model, base, job
        session.watch.after_backward = "backward"
        self.loss = losses.prepare(model, base, job)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.stepper = stepping.prepare(self.trained, base, job, session)
        self.outputs: Any = None

    def run(self, steps: int, progress: Progress) -> None:
        """``steps`` steps, and an evaluation batch after the last if the job has one."""
        micro = min(self.job.grad_accumulation, MOST_MICRO_BATCHES)
        for step in range(1, steps + 1):
            self.session.tracker.enter("forward", step)
            self.model.train()
            for part in range(micro):
                progress(f"step {step}", (step - 1 + part / micro) / steps)
                self._micro_batch(step, last=part == micro - 1)
            self._update(step)
        if self.job.eval_batch is not None:
            progress("evaluation", 1.0)
            self._evaluate(steps)
        self.session.notes.extend(self.stepper.notes())

    def _batch(self, count: int) -> batches.Batch:
        batch = batches.example(self.base, self.job, count, labels=True)
        return batches.on_device(batch, self.session.tracker, picture_dtype(self.job))

    def _micro_batch(self, step: int, *, last: bool) -> None:
        session, job = self.session, self.job
        session.tracker.enter("forward", step)
        batch = self._batch(job.micro_batch)
        with autocast(job):
            outputs, loss = self.loss(batch, job.outputs_held and job.checkpointing == "none")
        self.outputs = outputs if job.outputs_held else None
        del outputs
        if job.grad_accumulation > 1:
            loss = loss / job.grad_accumulation
        self.stepper.backward(loss)

    def _update(self, step: int) -> None:
        self.session.tracker.enter("optimizer step", step)
        self.stepper.step()
        self.session.tracker.enter("forward", step + 1)

    def _evaluate(self, step: int) -> None:
        """Trainer.prediction_step with prediction_loss_only: the loss of a batch without gradients, the cache in use."""
        job, session = self.job, self.session
        session.watch.pinned_phase = "evaluate"
        session.tracker.enter("evaluate", step)
        self.outputs = None
        self.model.eval()
        assert job.eval_batch is not None
        batch = self._batch(job.eval_batch)
        with torch.no_grad(), autocast(job):
            self.loss.evaluate(batch)
        session.watch.pinned_phase = None


def autocast(job: Job) -> AbstractContextManager[Any]:
    """torch.autocast as the job's precision has it."""
    kind = job.precision.autocast
    return nullcontext() if kind is None else torch.autocast("cuda", dtype=getattr(torch, kind))


def picture_dtype(job: Job) -> torch.dtype:
    """Pictures and sounds come in the format of the unpacked weights that read them (a processor's output, moved by the loop)."""
    return getattr(torch, rest_dtype(job))  # type: ignore[no-any-return]
