"""A stand-in for the ``pynvml`` module: cards, MIG instances, and drivers that fail in the ways real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

MIB = 1024 * 1024
NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, NO_LIBRARY, LOST, MISMATCH = 3, 4, 9, 12, 15, 18


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


@dataclass
class Card:
    name: str | bytes
    total_mib: int | None = None
    reserved_mib: int | None = None
    used_mib: int = 0
    ecc: int | None = None
    link: tuple[int, int, int, int] | None = (1, 8, 4, 16)
    mig: list[Card] | None = None
    uuid: str = "GPU-1"
    opens: bool = True


@dataclass
class FakeNvml:
    cards: list[Card] = field(default_factory=list)
    driver: str = "590.48.01"
    cuda: int = 13010
    init_error: int | Exception | None = None
    has_v2: bool = True
    closed: int = 0

    def __post_init__(self):
        if self.has_v2:
            self.nvmlMemory_v2 = 0x2000028

    def nvmlInit(self):
        if isinstance(self.init_error, int):
            raise NVMLError(self.init_error)
        if self.init_error is not None:
            raise self.init_error

    def nvmlShutdown(self):
        self.closed += 1

    def nvmlSystemGetDriverVersion(self):
        return self.driver.encode()

    def nvmlSystemGetCudaDriverVersion(self):
        return self.cuda

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if not self.cards[index].opens:
            raise NVMLError(LOST)
        return self.cards[index]

    def nvmlDeviceGetName(self, card):
        return card.name

    def nvmlDeviceGetUUID(self, card):
        return card.uuid

    def nvmlDeviceGetMemoryInfo(self, card, version=None):
        if card.total_mib is None:
            raise NVMLError(NOT_SUPPORTED)
        info = SimpleNamespace(total=card.total_mib * MIB, used=card.used_mib * MIB)
        if version:
            info.reserved = (card.reserved_mib or 0) * MIB
        return info

    def nvmlDeviceGetMigMode(self, card):
        if card.mig is None:
            raise NVMLError(NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, card):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):
        if index >= len(card.mig):
            raise NVMLError(6)
        return card.mig[index]

    def nvmlDeviceGetEccMode(self, card):
        if card.ecc is None:
            raise NVMLError(NOT_SUPPORTED)
        return [card.ecc, card.ecc]

    def _link(self, card, which):
        if card.link is None:
            raise NVMLError(NOT_SUPPORTED)
        return card.link[which]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card):
        return self._link(card, 0)

    def nvmlDeviceGetCurrPcieLinkWidth(self, card):
        return self._link(card, 1)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card):
        return self._link(card, 2)

    def nvmlDeviceGetMaxPcieLinkWidth(self, card):
        return self._link(card, 3)
