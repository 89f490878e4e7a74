"""What a search asks again and again about jobs on one card, answered once for each job."""

from __future__ import annotations

from types import ModuleType

from loadmaster.hardware import Device, Usable
from loadmaster.jobs import changes
from loadmaster.jobs.job import Job
from loadmaster.memory import Ledger, predict
from loadmaster.memory.prediction import allocated
from loadmaster.memory.timeline import moments
from loadmaster.models.spec import ModelSpec
from loadmaster.plan.plan import Verdict
from loadmaster.plan.verdict import verdict


class Search:
    """Peaks, ledgers and verdicts of jobs that run a model on a device with ``room``."""

    def __init__(self, spec: ModelSpec, room: Usable, device: Device) -> None:
        self.spec, self.room = spec, room
        self.capability = device.gpu.compute_capability
        self.host_apart = not device.gpu.shares_system_memory
        self.limit_bytes = room.usable_bytes.likely
        self._peaks: dict[Job, int] = {}
        self._verdicts: dict[Job, Verdict] = {}
        self._judged: dict[Job, tuple[Ledger, Verdict]] = {}

    def changes(self, job: Job) -> list[ModuleType]:
        """The changes that apply to a job and can save something on this device, cheapest for the person first."""
        return changes.applicable(job, host_apart=self.host_apart)

    def peak_bytes(self, job: Job) -> int:
        """Likely allocated bytes of a job's highest moment: the quick figure that is compared."""
        if job not in self._peaks:
            found = moments(self.spec, job, self.capability, detail=False)
            self._peaks[job] = max(int(moment.total_bytes) for moment in found)
        return self._peaks[job]

    def verdict(self, job: Job) -> Verdict:
        """Whether a job fits, from its allocated bytes alone."""
        if job not in self._verdicts:
            found = allocated(self.spec, job, self.capability)
            self._verdicts[job] = verdict(found, self.room.usable_bytes)
        return self._verdicts[job]

    def judged(self, job: Job) -> tuple[Ledger, Verdict]:
        """The whole ledger of a job and the verdict on it."""
        if job not in self._judged:
            ledger = predict(
                self.spec, job, compute_capability=self.capability, context=self.room.context_bytes
            )
            self._judged[job] = (
                ledger,
                self.verdict(job),
            )
        return self._judged[job]
