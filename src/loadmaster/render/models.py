"""Models for a terminal and as JSON; no input or output here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadmaster.units import format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from loadmaster.models.report import Listed, Shown

SCHEMA = "loadmaster.models/1"
"""Version of the JSON: counts are whole numbers, sizes whole bytes, unknown is null."""
UNKNOWN = "unknown"
_LABEL_WIDTH = 18


def list_json(models: Sequence[Listed]) -> str:
    """The catalogue as JSON."""
    return _json({"models": models})


def show_json(shown: Shown) -> str:
    """One model as JSON: its spec and what follows from it."""
    spec = shown.spec
    layers = [
        {"tower": tower.name, "modality": tower.modality, "layers": len(tower.layout)}
        for tower in spec.towers
    ]
    return _json(
        {
            "name": spec.name,
            "family": spec.model_type,
            "origin": spec.origin,
            "exact": spec.exact,
            "parameters": {"total": shown.parameters, "active": shown.active, "by_role": shown.roles},
            "published_parameters": spec.published_parameters,
            "towers": layers,
            "layers": shown.layers,
            "max_positions": spec.max_positions,
            "tied_head": spec.head.tied if spec.head else None,
            "stored": {"dtype": spec.stored_dtype, "quantization": spec.quantization, "files": spec.stored},
            "kv_cache": {
                "dtype": shown.cache_dtype,
                "bytes_per_token": shown.kv_bytes_per_token,
                "latent_bytes_per_token": shown.latent_bytes_per_token,
                "state_bytes": shown.state_bytes,
                "layers": shown.kv,
            },
            "flops": {
                "per_token": shown.flops_per_token,
                "per_token_at_max_positions": shown.flops_at_length,
            },
            "warnings": spec.warnings,
            "assumed": spec.assumed,
        }
    )


def list_text(models: Sequence[Listed], width: int) -> RenderableType:
    """The catalogue as a table for a terminal of ``width`` columns: long names are cut below 100."""
    from rich.table import Table

    cut = 33 if width < 100 else None

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("model", no_wrap=True, overflow="ellipsis", max_width=cut)
    table.add_column("family", no_wrap=True, overflow="ellipsis", max_width=11 if cut else None)
    for title in ("parameters", "active", "layers", "KV/token"):
        table.add_column(title, justify="right", no_wrap=True)
    for model in models:
        table.add_row(
            model.name,
            model.family,
            format_count(model.parameters),
            "" if model.active == model.parameters else format_count(model.active),
            str(model.layers),
            "-" if model.kv_bytes is None else format_bytes(model.kv_bytes),
        )
    return table


def show_text(shown: Shown) -> RenderableType:
    """One model: layers, parameters by role, cache, FLOPs, what is stored, what was assumed or not understood."""
    from rich.console import Group
    from rich.markup import escape

    spec = shown.spec
    grid = _grid()
    family = "shapes assumed" if spec.model_type == "assumed" else f"family {spec.model_type}"
    guessed = "" if spec.exact or spec.model_type == "assumed" else " (shapes assumed)"
    grid.add_row("Model", f"[bold]{escape(spec.name)}[/bold], {escape(family)}{guessed}")
    grid.add_row("Read from", escape(spec.origin))
    active = "" if shown.active == shown.parameters else f", {format_count(shown.active)} active per token"
    grid.add_row("Parameters", f"{format_count(shown.parameters)} ({shown.parameters:,}){active}")
    _published(grid, shown)
    for index, kind in enumerate(shown.layers[:12]):
        part = f"{kind.count} × {kind.mixer}; feed-forward {kind.feedforward}"
        grid.add_row(
            "Layers" if index == 0 else "", part if len(spec.towers) == 1 else f"{kind.tower}: {part}"
        )
    if len(shown.layers) > 12:
        grid.add_row("", f"and {len(shown.layers) - 12} more kinds")
    if spec.head:
        tied = "tied to the token table" if spec.head.tied else "its own matrix"
        grid.add_row("Head", f"{spec.head.vocab:,} × {spec.head.inputs:,}, {tied}")
    _cache(grid, shown)
    grid.add_row("Forward pass", _flops(shown))
    _stored(grid, shown)
    return Group(grid, "", _roles(shown), *_notes(shown))


def _published(grid: Table, shown: Shown) -> None:
    published = shown.spec.published_parameters
    if published is None or shown.spec.origin == "--params":
        return
    difference = published - shown.parameters
    why = f": {shown.spec.published_note}" if shown.spec.published_note else ""
    grid.add_row(
        "Published", "the same count" if difference == 0 else f"{published:,} ({difference:+,}{why})"
    )


def _cache(grid: Table, shown: Shown) -> None:
    if not shown.kv_bytes_per_token and not shown.state_bytes:
        grid.add_row("KV cache", "none")
        return
    if shown.kv_bytes_per_token:
        latent = ""
        if shown.latent_bytes_per_token is not None:
            latent = f" expanded, {format_bytes(shown.latent_bytes_per_token)} as latents"
        grid.add_row(
            "KV cache", f"{format_bytes(shown.kv_bytes_per_token)} per token in {shown.cache_dtype}{latent}"
        )
    windows = [kv for kv in shown.kv if kv.window is not None]
    for kv in windows:
        grid.add_row("", f"{_layers(kv.layers, 'keeps', 'keep')} at most {kv.window:,} tokens")
    crossing = sum(kv.layers for kv in shown.kv if kv.cross)
    if crossing:
        grid.add_row("", f"{_layers(crossing, 'also keeps', 'also keep')} the other tower's tokens")
    if shown.state_bytes:
        size = format_bytes(shown.state_bytes)
        grid.add_row("Recurrent state", f"{size} per sequence in {shown.cache_dtype}, whatever its length")


def _layers(count: int, one: str, many: str) -> str:
    return f"1 layer {one}" if count == 1 else f"{count} layers {many}"


def _flops(shown: Shown) -> str:
    if shown.flops_per_token is None:
        return "depends on the size of the image"
    text = f"{shown.flops_per_token / 1e9:.3g} GFLOP per token"
    if shown.flops_at_length and shown.spec.max_positions:
        text += f", {shown.flops_at_length / 1e9:.3g} at position {shown.spec.max_positions:,}"
    return text


def _stored(grid: Table, shown: Shown) -> None:
    spec = shown.spec
    kind = spec.quantization or spec.stored_dtype or UNKNOWN
    if spec.stored is None:
        grid.add_row("Stored in", kind)
        return
    files = f"{spec.stored.files} file{'s' if spec.stored.files > 1 else ''}"
    parts = ", ".join(
        f"{name} {format_bytes(size)}" for name, size in sorted(spec.stored.by_dtype_bytes.items())
    )
    grid.add_row("Stored in", f"{kind}: {format_bytes(spec.stored.total_bytes)} in {files} ({parts})")


def _roles(shown: Shown) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("role", width=_LABEL_WIDTH - 2)
    for title in ("parameters", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for role, count in shown.roles.items():
        share = count / shown.parameters
        table.add_row(role, f"{count:,}", f"{share:.1%}", "█" * round(24 * share))
    return table


def _notes(shown: Shown) -> list[RenderableType]:
    from rich.text import Text

    notes: list[RenderableType] = []
    for title, lines in (("warning", shown.spec.warnings), ("assumed", shown.spec.assumed)):
        notes += [Text(f"{title}: {line}", style="yellow") for line in lines]
    return ["", *notes] if notes else []


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_LABEL_WIDTH - 2, style="bold")
    grid.add_column(overflow="fold")
    return grid


def _json(content: dict[str, Any]) -> str:
    body = {"schema": SCHEMA, **content}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()
