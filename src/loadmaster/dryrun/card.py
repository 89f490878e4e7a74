"""The simulated card, as ``torch.cuda`` describes it. No torch here."""

from __future__ import annotations

from loadmaster.records import Record
from loadmaster.units import GIB


class Card(Record, kw_only=True):
    """What a program can ask of a CUDA device. ``total_bytes`` is the CUDA-visible total; ``usable_bytes`` what the allocator
    can get of it after the context; ``limited``: whether running out is simulated (False: as much as is asked for)."""

    name: str = "simulated GPU"
    total_bytes: int = 80 * GIB
    usable_bytes: int = 80 * GIB
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    limited: bool = False
