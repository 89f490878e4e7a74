"""Plan: the answer to "does this job fit on this device, and if not, what would make it fit"."""

from __future__ import annotations

from typing import Literal

from loadmaster.hardware import Device, Host, Usable
from loadmaster.jobs.job import Job
from loadmaster.memory.ledger import Ledger
from loadmaster.memory.serving import Budget
from loadmaster.models.spec import ModelSpec
from loadmaster.records import Interval, Record
from loadmaster.units import format_bytes

Verdict = Literal["fits", "tight", "does_not_fit"]


class Rung(Record, kw_only=True):
    """One change alone: what it is, the peak it leads to and what it saves against the job as asked (allocated bytes
    of the peak). ``numerics``: identical, close or different results; ``speed``: what it costs in time."""

    change: str
    text: str
    numerics: Literal["identical", "close", "different"]
    speed: str
    allocated_bytes: int
    saved_bytes: int
    verdict: Verdict

    @property
    def fits(self) -> bool:
        """Whether the job is expected to run with this change alone."""
        return self.verdict in ("fits", "tight")


class Combination(Record, kw_only=True):
    """Changes that together make the job fit, in the order in which they are applied, with the job and its ledger."""

    changes: tuple[str, ...]
    texts: tuple[str, ...]
    job: Job
    ledger: Ledger
    verdict: Verdict


class Plan(Record, kw_only=True):
    """The verdict on one job. ``margin_bytes``: usable bytes minus the likely allocated ones of
    the peak (negative: missing). ``usable`` is None where there is no device
    to compare with, and then so is the verdict; it is None too where only the weights are known, and they fit."""

    model: ModelSpec
    job: Job
    device: Device | None
    host: Host | None
    usable: Usable | None
    ledger: Ledger
    verdict: Verdict | None
    margin_bytes: int | None
    ram_verdict: Verdict | None
    """Whether the host's memory is enough; None where the host isn't known."""
    ladder: tuple[Rung, ...] = ()
    fitting: Combination | None = None
    """The first combination that fits; None: the job fits as it is, or nothing here makes it fit."""
    budget: Budget | None = None
    """What a server's budget leaves to KV cache; None for libraries without one, or without a device."""
    least_bytes: int | None = None
    """Where nothing here makes it fit: allocated bytes of the peak when every change that helps is made."""
    notes: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    """The words of a command line that name the model and the device: ``Qwen/Qwen2.5-7B --gpu rtx4090``."""

    @property
    def fits(self) -> bool:
        """Whether the job is expected to run: the verdict is fits or tight."""
        return self.verdict in ("fits", "tight")

    @property
    def usable_bytes(self) -> Interval | None:
        """Bytes that a job can use on the device."""
        return self.usable.usable_bytes if self.usable is not None else None

    def __repr__(self) -> str:
        """One line: what was asked, the verdict, the peak. (The fields in full are ``msgspec.to_builtins(plan)``.)"""
        peak = self.ledger.peak
        judged = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit", None: "no verdict"}[
            self.verdict
        ]
        needs = f"{format_bytes(peak.allocated.likely)} allocated at {peak.phase}"
        card = f" on {self.device.name}" if self.device is not None else ""
        leaves = (
            f" ({format_bytes(self.usable_bytes.likely)} usable)" if self.usable_bytes is not None else ""
        )
        return f"<Plan {self.model.name}{card}{leaves}: {judged}, {needs}>"

    def _repr_html_(self) -> str:
        """A table for notebooks; see ``render.plan_html``."""
        from loadmaster.render.plan_html import plan_html

        return plan_html(self)
