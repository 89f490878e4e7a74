"""A Plan as JSON for programs; the fields are described in docs/json.md and in docs/plan.schema.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadmaster.jobs.job import Job
from loadmaster.jobs.words import words
from loadmaster.memory import Entry
from loadmaster.models.parameters import parameter_count
from loadmaster.plan import Plan
from loadmaster.records import Interval
from loadmaster.render.command import command, command_line

if TYPE_CHECKING:
    from loadmaster.plan.rules_of_thumb import Rule

SCHEMA = "loadmaster.plan/1"
"""Sizes are whole bytes, unknown is null."""


def plan_json(plan: Plan, rules: Sequence[Rule] = ()) -> str:
    """The plan as JSON text, with ``rules_of_thumb`` if there are any."""
    fields = plan_fields(plan)
    if rules:
        fields["rules_of_thumb"] = msgspec.to_builtins(tuple(rules))
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def plan_fields(plan: Plan) -> dict[str, Any]:
    """The plan as plain dicts, lists, strings and ints."""
    ledger = plan.ledger
    return {
        "schema": SCHEMA,
        "verdict": plan.verdict,
        "margin_bytes": plan.margin_bytes,
        "model": {
            "name": plan.model.name,
            "model_type": plan.model.model_type,
            "parameters": parameter_count(plan.model),
            "exact": plan.model.exact,
            "origin": plan.model.origin,
        },
        "job": _job(plan.job),
        "device": _device(plan),
        "peak": {
            "phase": ledger.peak.phase,
            "moment": ledger.peak.moment,
            "allocated": _interval(ledger.peak.allocated),
            "reserved": _interval(ledger.peak.reserved),
            "process": _interval(ledger.peak.process),
        },
        "phases": [
            {"phase": p.phase, "moment": p.moment, "allocated": _interval(p.allocated)} for p in ledger.phases
        ],
        "ram": {
            **_interval(ledger.ram),
            "phase": ledger.ram_phase,
            "verdict": plan.ram_verdict,
            "available_bytes": plan.host.usable_ram_bytes if plan.host else None,
        },
        "disk": _interval(ledger.disk),
        "entries": [_entry(entry) for entry in ledger.entries],
        "assumptions": [{"field": a.field, "value": a.value, "text": a.text} for a in ledger.assumptions],
        "ladder": [
            {
                "change": rung.change,
                "text": rung.text,
                "allocated_bytes": rung.allocated_bytes,
                "saved_bytes": rung.saved_bytes,
                "verdict": rung.verdict,
                "fits": rung.fits,
                "numerics": rung.numerics,
                "speed": rung.speed,
            }
            for rung in plan.ladder
        ],
        "fitting": _fitting(plan),
        "least_bytes": plan.least_bytes,
        "command": _command(plan, plan.job),
        "notes": list(plan.notes),
        "warnings": list(ledger.warnings),
    }


def _interval(size: Interval) -> dict[str, int]:
    return {"low": size.low, "likely": size.likely, "high": size.high}


def _job(job: Job) -> dict[str, Any]:
    """Every choice, computed defaults included; ``words`` are the ones that differ from what is usual."""
    fields: dict[str, Any] = msgspec.to_builtins(job)
    return {**fields, "words": words(job)}


def _device(plan: Plan) -> dict[str, Any] | None:
    if plan.device is None or plan.usable is None:
        return None
    terms = plan.usable
    return {
        "name": plan.device.name,
        "vendor": plan.device.gpu.vendor,
        "compute_capability": plan.device.gpu.compute_capability,
        "index": plan.device.index,
        "usable_bytes": terms.usable_bytes.likely,
        "usable": _interval(terms.usable_bytes),
        "visible": _interval(terms.visible_bytes),
        "context": _interval(terms.context_bytes),
        "held": _interval(terms.held_bytes),
        "origins": list(terms.origins),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "component": entry.component,
        "tier": entry.tier,
        "phase": entry.phase,
        "bytes": _interval(entry.bytes),
        "formula": entry.formula,
        "source": entry.source,
        "origin": entry.origin,
        "tensors": [{"name": name, "bytes": size} for name, size in entry.tensors],
    }


def _fitting(plan: Plan) -> dict[str, Any] | None:
    found = plan.fitting
    if found is None:
        return None
    peak = found.ledger.peak
    return {
        "changes": list(found.changes),
        "texts": list(found.texts),
        "verdict": found.verdict,
        "job": _job(found.job),
        "peak": {
            "phase": peak.phase,
            "moment": peak.moment,
            "allocated": _interval(peak.allocated),
            "reserved": _interval(peak.reserved),
            "process": _interval(peak.process),
        },
        "command": _command(plan, found.job),
    }


def _command(plan: Plan, job: Job) -> str | None:
    asked = command(plan, job)
    return None if asked is None else command_line(asked)
