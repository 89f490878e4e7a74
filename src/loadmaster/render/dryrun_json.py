"""A DryRun as JSON for programs. The records here are the format; ``json_schema`` writes it out (docs/dryrun.schema.json)."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadmaster.dryrun.result import DryRun
from loadmaster.memory.ledger import Ledger
from loadmaster.plan import Plan

SCHEMA: Literal["loadmaster.dryrun/1"] = "loadmaster.dryrun/1"
"""Raised when a field is removed or changes its meaning."""


class DryRunFields(DryRun, kw_only=True):
    """``loadmaster dryrun --json``: the whole record, the verdict, and the plan's ledger where a comparison was asked for. Sizes
    are bytes; unknown is null; steps are counted from 0."""

    schema: Literal["loadmaster.dryrun/1"]
    verdict: Literal["fits", "runs_out"] | None
    plan: Ledger | None


def dryrun_json(run: DryRun, plan: Plan | None = None) -> str:
    """The dry run as JSON text; ``plan`` is the one to compare with."""
    verdict: dict[bool | None, Literal["fits", "runs_out"] | None] = {
        True: "fits",
        False: "runs_out",
        None: None,
    }
    fields = {name: getattr(run, name) for name in DryRun.__struct_fields__}
    found = msgspec.to_builtins(
        DryRunFields(schema=SCHEMA, verdict=verdict[run.fits], plan=plan.ledger if plan else None, **fields)
    )
    first = ("schema", "verdict")
    ordered = {**{name: found[name] for name in first}, **{k: v for k, v in found.items() if k not in first}}
    return msgspec.json.format(msgspec.json.encode(ordered), indent=2).decode()


def json_schema() -> str:
    """The format as JSON Schema 2020-12."""
    return (
        msgspec.json.format(msgspec.json.encode(msgspec.json.schema(DryRunFields)), indent=2).decode() + "\n"
    )
