"""Card: a device together with what a job can use on it, as it is shown and handed to planners."""

from __future__ import annotations

from loadmaster.hardware.machine import Device, Host, Machine
from loadmaster.hardware.partitions import profiles
from loadmaster.hardware.usable import Usable, usable
from loadmaster.records import Record


class Card(Record, kw_only=True):
    """A device with the memory that one job can use on it, and the MIG profiles it could be cut into."""

    device: Device
    usable: Usable
    mig_profiles: tuple[str, ...] = ()


class MachineCards(Record, kw_only=True):
    """A machine and a card for each of its devices."""

    machine: Machine
    cards: tuple[Card, ...]


def card_of(device: Device, host: Host | None = None) -> Card:
    """The card of a device, on ``host`` where it has one."""
    return Card(
        device=device,
        usable=usable(device, host),
        mig_profiles=() if device.partition else profiles(device.gpu),
    )


def cards_of(machine: Machine) -> MachineCards:
    """A machine with a card for each of its devices."""
    return MachineCards(
        machine=machine, cards=tuple(card_of(device, machine.host) for device in machine.gpus)
    )
