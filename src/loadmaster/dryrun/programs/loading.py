"""What a job runs on: the model, built on the meta device, changed as its method asks, put on the simulated device."""

from __future__ import annotations

import importlib
from typing import Any

from loadmaster.dryrun.programs import adapters, building, checkpointing, quantized, versions
from loadmaster.dryrun.programs.honoured import attention
from loadmaster.jobs.job import Job

FALLBACK = (
    "state space layers ran as transformers' own loop, as without the mamba-ssm and causal-conv1d packages: with their kernels "
    "far less is kept"
)


class Loaded:
    """A model that is ready to be put on a device and run."""

    def __init__(self, model: Any, base: Any, job: Job) -> None:
        self.model, self.base, self.job = model, base, job
        self.running: Any = None
        dropped = building.masked_head(base.config)
        slow = any(hasattr(module, "slow_forward") for module in base.modules())
        self.notes: tuple[str, ...] = (FALLBACK,) if slow else ()
        if dropped is not None:
            self.notes += (
                f"{type(base).__name__} was built, as a plan counts it: without a masked language model's head",
            )

    @property
    def program(self) -> str:
        """In words: what is run."""
        job = self.job
        kind = type(self.base).__name__
        if not job.training:
            return f"{kind}: prefill and generation"
        return f"{kind}: {job.method} training steps"

    def onto(self, session: Any) -> None:
        """Parameters and buffers become blocks of the simulated device."""
        if self.job.quantization is not None:
            quantized.onto(self.model, session)
        session.device_module(self.model)

    def run(self, session: Any, steps: int, progress: Any) -> None:
        """The job itself; what runs it lives on, so that the record ends with it and not with its taking down."""
        if self.job.training:
            from loadmaster.dryrun.programs.training import Training

            training = Training(session, self.model, self.base, self.job)
            self.running = training
            training.run(steps, progress)
        else:
            from loadmaster.dryrun.programs.inference import Inference

            inference = Inference(session, self.model, self.job)
            self.running = inference
            inference.run(progress)


def load(fields: dict[str, Any], name: str, job: Job) -> Loaded:
    """Build the model of a config and change it as the job's method asks."""
    config = building.config_of(fields, name)
    if job.optimizer.name == "adafactor":
        # Before there is a simulated device: what it imports looks for a GPU's libraries.
        importlib.import_module("transformers.optimization")
    base = building.build(config, job.precision.weights, attention(job), name)
    versions.adapt(base, job)
    model = base
    if job.quantization is not None:
        quantized.quantize(base, job)
        if job.training and job.quantization.upcast_rest:
            quantized.prepare(base, job)
    if job.training:
        if job.lora is not None:
            model = adapters.wrap(base, job)
        else:
            adapters.freeze(base, job)
        checkpointing.enable(base, job)
    return Loaded(model, base, job)
