"""Machines and cards for a terminal and as JSON; no input or output here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from loadmaster.units import GIB, format_bytes, format_gib

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from loadmaster.hardware import Card, Device, Gpu, Host, Link, MachineCards
    from loadmaster.records import Interval

SCHEMA = "loadmaster.hardware/1"
"""Version of the JSON: sizes are whole bytes, unknown is null."""
UNKNOWN = "unknown"
_COLUMN_WIDTH = 20
_LABEL_WIDTH = 18


def machine_json(seen: MachineCards) -> str:
    """This machine as JSON: ``machine`` and, device by device, ``cards`` with the terms of what a job can use."""
    return _json({"machine": seen.machine, "cards": seen.cards})


def cards_json(cards: Sequence[Card]) -> str:
    """Cards as JSON."""
    return _json({"cards": cards})


def machine_text(seen: MachineCards) -> RenderableType:
    """This machine: its cards or why there are none, and the memory around them."""
    from rich.console import Group

    parts: list[RenderableType] = [_device(card) for card in seen.cards]
    grid = _grid()
    if not seen.cards:
        grid.add_row("GPU", "none that this process can see")
    for absent in seen.machine.absent:
        grid.add_row(f"no {absent.vendor}" if not seen.cards else absent.vendor, absent.reason)
    if seen.machine.driver:
        cuda = f", CUDA up to {seen.machine.cuda_driver_version}" if seen.machine.cuda_driver_version else ""
        grid.add_row("Driver", f"{seen.machine.driver}{cuda}")
    _host(grid, seen.machine.host)
    return Group(*parts, grid)


def list_text(cards: Sequence[Card]) -> RenderableType:
    """The catalogue as a table: marketed memory, what a job can use of it, bandwidth."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("GPU", no_wrap=True)
    table.add_column("architecture", no_wrap=True, overflow="ellipsis", max_width=12)
    for title in ("memory", "usable", "bandwidth"):
        table.add_column(title, justify="right", no_wrap=True)
    for card in cards:
        gpu = card.device.gpu
        table.add_row(
            gpu.name,
            gpu.architecture or UNKNOWN,
            format_gib(gpu.memory_marketed_bytes, 0),
            format_gib(card.usable.usable_bytes.likely),
            UNKNOWN if gpu.bandwidth_gb_per_s is None else f"{gpu.bandwidth_gb_per_s:.0f} GB/s",
        )
    return table


def card_text(card: Card) -> RenderableType:
    """One card: its memory term by term, its rates, its slices, where the figures come from."""
    from rich.console import Group
    from rich.markup import escape

    device, gpu = card.device, card.device.gpu
    grid = _grid()
    _memory_rows(grid, card)
    for label, value in _rates(device):
        if value is not None:
            grid.add_row(label, value)
    if card.mig_profiles:
        grid.add_row("MIG profiles", ", ".join(card.mig_profiles))
    if gpu.aliases:
        grid.add_row("Also named", escape(", ".join(gpu.aliases)))
    if gpu.notes:
        grid.add_row("Notes", escape(gpu.notes))
    grid.add_row("Source", escape(gpu.source))
    return Group(f"[bold]{escape(device.name)}[/]  {escape(_kind(gpu))}", grid)


def compare_text(cards: Sequence[Card], width: int) -> RenderableType:
    """Cards side by side, as many in a row as ``width`` columns hold."""
    from rich.console import Group
    from rich.table import Table

    per_row = max(1, (width - _LABEL_WIDTH) // _COLUMN_WIDTH)
    tables: list[RenderableType] = []
    for start in range(0, len(cards), per_row):
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column("", no_wrap=True)
        chunk = cards[start : start + per_row]
        for card in chunk:
            table.add_column(card.device.name, justify="right", max_width=_COLUMN_WIDTH - 2)
        for label, values in _compared(chunk):
            if any(value is not None for value in values):
                nothing = "none listed" if label == "Interconnect" else UNKNOWN
                table.add_row(label, *(value or nothing for value in values))
        tables.append(table)
        if start + per_row < len(cards):
            tables.append("")
    return Group(*tables)


def assumptions(cards: Sequence[Card]) -> list[RenderableType]:
    """What the names left open and how they were taken, one line each."""
    from rich.text import Text

    said = dict.fromkeys(line for card in cards for line in card.device.assumed)
    return [Text(f"assumed: {line}") for line in said]


def _json(body: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode({"schema": SCHEMA, **body}), indent=2).decode()


def _grid() -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold", min_width=10)
    grid.add_column()
    return grid


def _device(card: Card) -> RenderableType:
    from rich.console import Group
    from rich.markup import escape

    device = card.device
    grid = _grid()
    _memory_rows(grid, card)
    if device.ecc is not None:
        grid.add_row("ECC", "on" if device.ecc else "off")
    if device.link is not None:
        grid.add_row("PCIe link", _link(device.link))
    for line in device.assumed:
        grid.add_row("Assumed", escape(line))
    index = "" if device.index is None else f"GPU {device.index}: "
    return Group(f"[bold]{index}{escape(device.name)}[/]  {escape(_kind(device.gpu))}", grid, "")


def _memory_rows(grid: Table, card: Card) -> None:
    from rich.markup import escape

    device, terms = card.device, card.usable
    each = " each" if device.count > 1 else ""
    grid.add_row("Usable", f"[bold]{_interval(terms.usable_bytes)}[/]{each}")
    grid.add_row(
        "  visible",
        f"{_interval(terms.visible_bytes)} to CUDA" if _cuda(device) else _interval(terms.visible_bytes),
    )
    grid.add_row("  context", f"- {_interval(terms.context_bytes)}")
    if device.held_bytes is not None:
        grid.add_row("  held", f"- {format_gib(device.held_bytes, 2)} by other processes")
    for origin in terms.origins:
        grid.add_row("", f"[dim]{escape(origin)}[/]")
    nvml = device.nvml_total_bytes or (device.gpu.memory_nvml_bytes if device.partition is None else None)
    totals = [f"sold as {format_gib(device.gpu.memory_marketed_bytes, 0)}"]
    if device.system_memory_bytes is not None:
        totals = [f"{format_gib(device.system_memory_bytes, 0)} of system memory"]
    if nvml is not None:
        totals.append(
            f"{format_gib(nvml, 2)} in nvidia-smi"
            if _cuda(device)
            else f"{format_gib(nvml, 2)} in the driver"
        )
    grid.add_row("Totals", ", ".join(totals))


def _cuda(device: Device) -> bool:
    return device.gpu.vendor in ("NVIDIA", "any")


def _kind(gpu: Gpu) -> str:
    capability = gpu.compute_capability
    if capability and gpu.vendor == "NVIDIA":
        capability = f"compute capability {capability}"
    parts = [gpu.vendor, gpu.architecture, capability, str(gpu.year) if gpu.year else None]
    return ", ".join(dict.fromkeys(part for part in parts if part and part not in ("any", "unknown")))


def _host(grid: Table, host: Host) -> None:
    from rich.markup import escape

    if host.ram_total_bytes is not None:
        available = host.ram_available_bytes
        left = f", {format_gib(available)} available" if available is not None else ""
        grid.add_row("RAM", f"{format_gib(host.ram_total_bytes)}{left}")
    else:
        grid.add_row("RAM", UNKNOWN)
    grid.add_row("Swap", _swap(host))
    grid.add_row("cgroup", escape(_cgroup(host)))
    shm = "none mounted"
    if host.shm_total_bytes is not None:
        free = f", {format_bytes(host.shm_free_bytes)} free" if host.shm_free_bytes is not None else ""
        shm = f"{format_bytes(host.shm_total_bytes)}{free}"
    grid.add_row("/dev/shm", shm)  # noqa: S108
    lock = (
        "no limit"
        if host.memlock_unlimited
        else UNKNOWN
        if host.memlock_bytes is None
        else format_bytes(host.memlock_bytes)
    )
    grid.add_row("Locked memory", lock)
    grid.add_row("Cores", str(host.cores) if host.cores else UNKNOWN)
    where = [host.platform or UNKNOWN]
    if host.container:
        where.append(f"in a container ({host.container})")
    grid.add_row("Platform", escape(", ".join(where)))


def _swap(host: Host) -> str:
    if host.swap_total_bytes is None:
        return UNKNOWN
    if host.swap_total_bytes == 0:
        return "none"
    free = f", {format_gib(host.swap_free_bytes)} free" if host.swap_free_bytes is not None else ""
    return f"{format_gib(host.swap_total_bytes)}{free}"


def _cgroup(host: Host) -> str:
    if host.cgroup_version is None:
        return "none visible"
    used = f", {format_gib(host.cgroup_used_bytes)} in use" if host.cgroup_used_bytes is not None else ""
    limit = "no limit" if host.cgroup_limit_bytes is None else f"limit {format_gib(host.cgroup_limit_bytes)}"
    high = (
        f", throttled from {format_gib(host.cgroup_high_bytes)}" if host.cgroup_high_bytes is not None else ""
    )
    return f"{limit}{high}{used} ({host.cgroup_version}, {host.cgroup_path})"


def _link(link: Link) -> str:
    now = f"gen {link.generation or UNKNOWN} × {link.lanes or UNKNOWN} lanes now"
    return f"{now}, at most gen {link.max_generation or UNKNOWN} × {link.max_lanes or UNKNOWN}"


def _interval(size: Interval) -> str:
    if size.low == size.high:
        return format_gib(size.likely, 2)
    return f"{format_gib(size.likely, 2)} ({size.low / GIB:.2f} to {format_gib(size.high, 2)})"


def _rates(device: Device) -> list[tuple[str, str | None]]:
    """The rates of a card; of a MIG slice the part that its fractions of memory and multiprocessors give."""
    gpu, part = device.gpu, device.partition
    memory = part.fraction if part and part.fraction is not None else 1.0
    compute = part.compute_fraction if part and part.compute_fraction is not None else 1.0

    def rate(value: float | None, unit: str) -> str | None:
        if value is None:
            return None
        share = {"GB/s": memory, "W": 1.0}.get(unit, compute)
        return f"{value:g} {unit}" if share == 1.0 else f"{value * share:.4g} {unit}"

    pcie = f"gen {gpu.pcie_gen} × {gpu.pcie_lanes} lanes" if gpu.pcie_gen else None
    link = gpu.interconnect
    if link and gpu.interconnect_gb_per_s:
        link = f"{link.replace(';', ', ')}, {gpu.interconnect_gb_per_s:g} GB/s both ways"
    return [
        ("Memory type", gpu.memory_type),
        ("Bandwidth", rate(gpu.bandwidth_gb_per_s, "GB/s")),
        ("PCIe", pcie),
        ("Interconnect", link),
        ("fp32", rate(gpu.fp32_tflops, "TFLOPS")),
        ("tf32", rate(gpu.tf32_tflops, "TFLOPS")),
        ("bf16", rate(gpu.bf16_tflops, "TFLOPS")),
        ("fp16", rate(gpu.fp16_tflops, "TFLOPS")),
        ("fp8", rate(gpu.fp8_tflops, "TFLOPS")),
        ("int8", rate(gpu.int8_tops, "TOPS")),
        ("Power", rate(gpu.tdp_w, "W")),
    ]


def _compared(cards: Sequence[Card]) -> list[tuple[str, list[str | None]]]:
    def column(card: Card) -> list[tuple[str, str | None]]:
        gpu, terms = card.device.gpu, card.usable
        return [
            ("Usable", format_gib(terms.usable_bytes.likely, 2)),
            ("Visible", format_gib(terms.visible_bytes.likely, 2)),
            ("Context", format_gib(terms.context_bytes.likely, 2)),
            ("Sold as", format_gib(gpu.memory_marketed_bytes, 0)),
            ("Architecture", gpu.architecture),
            ("Capability", gpu.compute_capability),
            ("Year", str(gpu.year) if gpu.year else None),
            *_rates(card.device),
        ]

    columns = [column(card) for card in cards]
    return [(row[0][0], [cell[1] for cell in row]) for row in zip(*columns, strict=True)]
