"""A Plan as JSON for programs. The records here are the format; ``json_schema`` writes it out (docs/plan.schema.json)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from loadmaster.jobs.job import Job
from loadmaster.jobs.words import words
from loadmaster.memory.ledger import Assumption, Entry, Peak, PhaseTotal
from loadmaster.memory.serving import Budget
from loadmaster.models.parameters import parameter_count
from loadmaster.plan.plan import Plan, Rung, Verdict
from loadmaster.plan.rules_of_thumb import Rule
from loadmaster.records import Interval, Record
from loadmaster.render.command import command, command_line

SCHEMA: Literal["loadmaster.plan/1"] = "loadmaster.plan/1"
"""Raised when a field is removed or changes its meaning."""


class ModelFields(Record, kw_only=True):
    """The model: ``parameters`` counts tied ones once; not ``exact``: shapes were guessed."""

    name: str
    model_type: str
    parameters: int
    exact: bool
    origin: str


class DeviceFields(Record, kw_only=True):
    """The card: ``usable`` = ``visible`` − ``context`` − ``held``; ``usable_bytes`` is its likely value."""

    name: str
    vendor: str
    compute_capability: str | None
    index: int | None
    usable_bytes: int
    usable: Interval
    visible: Interval
    context: Interval
    held: Interval
    origins: tuple[str, ...]


class RamFields(Record, kw_only=True):
    """Host memory at its highest phase; ``verdict`` and ``available_bytes`` only where the plan is for this machine."""

    phase: str
    low: int
    likely: int
    high: int
    verdict: Verdict | None
    available_bytes: int | None


class FittingFields(Record, kw_only=True):
    """The first combination of changes that fits, its job and the command that plans it."""

    changes: tuple[str, ...]
    texts: tuple[str, ...]
    verdict: Verdict
    peak: Peak
    job: dict[str, Any]
    command: str | None


class PlanFields(Record, kw_only=True):
    """``loadmaster plan --json``. Sizes are bytes; unknown is null."""

    schema: Literal["loadmaster.plan/1"]
    verdict: Verdict | None
    margin_bytes: int | None
    model: ModelFields
    job: dict[str, Any]
    words: dict[str, Any] | None
    """The job as options, without those that are usual."""
    command: str | None
    device: DeviceFields | None
    peak: Peak
    phases: tuple[PhaseTotal, ...]
    ram: RamFields
    disk: Interval
    entries: tuple[Entry, ...]
    assumptions: tuple[Assumption, ...]
    ladder: tuple[Rung, ...]
    fitting: FittingFields | None
    budget: Budget | None
    least_bytes: int | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    rules_of_thumb: tuple[Rule, ...]


def plan_json(plan: Plan, rules: Sequence[Rule] = ()) -> str:
    """The plan as JSON text, with rules of thumb if they were asked for."""
    return msgspec.json.format(msgspec.json.encode(plan_fields(plan, rules)), indent=2).decode()


def json_schema() -> str:
    """The format as JSON Schema 2020-12."""
    return msgspec.json.format(msgspec.json.encode(msgspec.json.schema(PlanFields)), indent=2).decode() + "\n"


def plan_fields(plan: Plan, rules: Sequence[Rule] = ()) -> PlanFields:
    """The plan as the record that is printed."""
    ledger, model = plan.ledger, plan.model
    return PlanFields(
        schema=SCHEMA,
        verdict=plan.verdict,
        margin_bytes=plan.margin_bytes,
        model=ModelFields(
            name=model.name,
            model_type=model.model_type,
            parameters=parameter_count(model),
            exact=model.exact,
            origin=model.origin,
        ),
        job=msgspec.to_builtins(plan.job),
        words=words(plan.job),
        command=_command(plan, plan.job),
        device=_device(plan),
        peak=ledger.peak,
        phases=ledger.phases,
        ram=RamFields(
            phase=ledger.ram_phase,
            low=ledger.ram.low,
            likely=ledger.ram.likely,
            high=ledger.ram.high,
            verdict=plan.ram_verdict,
            available_bytes=plan.host.usable_ram_bytes if plan.host else None,
        ),
        disk=ledger.disk,
        entries=ledger.entries,
        assumptions=ledger.assumptions,
        ladder=plan.ladder,
        fitting=_fitting(plan),
        budget=plan.budget,
        least_bytes=plan.least_bytes,
        notes=plan.notes,
        warnings=ledger.warnings,
        rules_of_thumb=tuple(rules),
    )


def _device(plan: Plan) -> DeviceFields | None:
    if plan.device is None or plan.usable is None:
        return None
    terms = plan.usable
    return DeviceFields(
        name=plan.device.name,
        vendor=plan.device.gpu.vendor,
        compute_capability=plan.device.gpu.compute_capability,
        index=plan.device.index,
        usable_bytes=terms.usable_bytes.likely,
        usable=terms.usable_bytes,
        visible=terms.visible_bytes,
        context=terms.context_bytes,
        held=terms.held_bytes,
        origins=terms.origins,
    )


def _fitting(plan: Plan) -> FittingFields | None:
    found = plan.fitting
    if found is None:
        return None
    return FittingFields(
        changes=found.changes,
        texts=found.texts,
        verdict=found.verdict,
        peak=found.ledger.peak,
        job=msgspec.to_builtins(found.job),
        command=_command(plan, found.job),
    )


def _command(plan: Plan, job: Job) -> str | None:
    asked = command(plan, job)
    return None if asked is None else command_line(asked)
