"""What a machine is: cards, slices of cards, hosts and links, and how much memory a job can use on them.

It knows the catalogue of accelerators (``data/gpus.csv``), how people, nvidia-smi, torch and clouds spell their names,
MIG and vGPU slices, unified memory, the size of a CUDA context. It asks no driver: finding out what this machine has is
``sensors/``.

To add a card: one row in ``data/gpus.csv``; its spellings follow from its name, the rest goes into ``aliases``.
To add a MIG profile, a context size, a driver reserve or a share of unified memory: one row in the table of that name.
"""

from __future__ import annotations

from loadmaster.hardware.cards import Card, MachineCards, card_of, cards_of
from loadmaster.hardware.catalogue import all_gpus, get_gpu
from loadmaster.hardware.cpu import cpu_device
from loadmaster.hardware.find import custom_device, find_detected, find_gpu
from loadmaster.hardware.gpu import Gpu
from loadmaster.hardware.machine import Absent, Device, Host, Link, Machine, Partition
from loadmaster.hardware.tiers import Tier, pcie_gb_per_s, tiers
from loadmaster.hardware.usable import Usable, usable

__all__ = [
    "Absent",
    "Card",
    "Device",
    "Gpu",
    "Host",
    "Link",
    "Machine",
    "MachineCards",
    "Partition",
    "Tier",
    "Usable",
    "all_gpus",
    "card_of",
    "cards_of",
    "cpu_device",
    "custom_device",
    "find_detected",
    "find_gpu",
    "get_gpu",
    "pcie_gb_per_s",
    "tiers",
    "usable",
]
