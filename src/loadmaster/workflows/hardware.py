"""``loadmaster hardware``: this machine, the catalogue, one card, several cards side by side."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from loadmaster.errors import UnknownNameError, UsageError
from loadmaster.hardware import Card, Device, Machine, MachineCards, all_gpus, card_of, cards_of, find_gpu


def this_machine(machine: Machine | None = None) -> MachineCards:
    """What a job started here would see; ``machine`` stands in for detection."""
    if machine is None:
        from loadmaster.sensors import detect

        machine = detect()
    return cards_of(machine)


def list_cards(vendor: str | None = None) -> tuple[Card, ...]:
    """Every card of the catalogue, or those of one vendor; raises UnknownNameError for a vendor it doesn't have."""
    gpus = all_gpus()
    if vendor is not None:
        vendors = {gpu.vendor.lower(): gpu.vendor for gpu in gpus}
        if vendor.lower() not in vendors:
            near = [vendors[key] for key in difflib.get_close_matches(vendor.lower(), vendors, n=1)]
            raise UnknownNameError(
                "vendor", vendor, near, hint=f"the catalogue has {', '.join(vendors.values())}"
            )
        gpus = tuple(gpu for gpu in gpus if gpu.vendor == vendors[vendor.lower()])
    return tuple(card_of(Device(gpu=gpu)) for gpu in gpus)


def show_card(name: str) -> Card:
    """One card, by any spelling that ``find_gpu`` takes; raises what it raises."""
    return card_of(find_gpu(name))


def compare_cards(names: Sequence[str]) -> tuple[Card, ...]:
    """Several cards; raises UsageError for fewer than two and what ``find_gpu`` raises."""
    if len(names) < 2:
        raise UsageError(
            "a comparison needs two cards or more", hint="loadmaster hardware compare 4090 a100-80gb"
        )
    return tuple(show_card(name) for name in names)
