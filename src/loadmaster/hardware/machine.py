"""Machine and its parts: what one job sees of a computer. Unknown is None, never 0."""

from __future__ import annotations

from typing import Literal

from loadmaster.hardware.gpu import Gpu
from loadmaster.records import Record


class Partition(Record, kw_only=True):
    """A slice of a card. A MIG slice has memory of its own and CUDA sees all of it; a vGPU's total also holds what its
    guest driver keeps back."""

    kind: Literal["mig", "vgpu"]
    profile: str
    memory_bytes: int
    memory_low_bytes: int
    memory_high_bytes: int
    fraction: float | None = None
    """Of the card's memory (MIG)."""
    compute_fraction: float | None = None
    """Of the card's multiprocessors (MIG)."""
    source: str


class Link(Record, kw_only=True):
    """The PCIe link of a card, now and at most. Idle cards run at a lower generation, and virtual machines may print
    what isn't so; only a measurement tells the rate."""

    generation: int | None = None
    lanes: int | None = None
    max_generation: int | None = None
    max_lanes: int | None = None


class Device(Record, kw_only=True):
    """What one job sees of an accelerator: the kind, how many there are, and what is special about these.

    ``gpu`` is a catalogue row, or a made-up one for a size given by the user. ``nvml_total_bytes`` and
    ``cuda_total_bytes`` were measured on this very device and win over the catalogue. ``held_bytes`` is what other
    processes hold on it. ``assumed`` says what its name left open and how it was taken.
    """

    gpu: Gpu
    count: int = 1
    partition: Partition | None = None
    ecc: bool | None = None
    """The state of ECC on this device; None: the catalogue's default."""
    index: int | None = None
    uuid: str | None = None
    device_name: str | None = None
    """As the driver spells it."""
    nvml_total_bytes: int | None = None
    nvml_reserved_bytes: int | None = None
    cuda_total_bytes: int | None = None
    held_bytes: int | None = None
    system_memory_bytes: int | None = None
    """The memory that a unified-memory machine has in all."""
    driver: str | None = None
    link: Link | None = None
    assumed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: ``2 × A100 SXM4 80GB:1g.10gb``."""
        slice_ = f":{self.partition.profile}" if self.partition else ""
        return f"{self.count} × {self.gpu.name}{slice_}" if self.count != 1 else f"{self.gpu.name}{slice_}"


class Host(Record, kw_only=True):
    """The memory around the cards. A cgroup's numbers are of the tightest level that is visible from inside.

    ``cgroup_used_bytes`` counts what can't be given back at once (usage without inactive file pages), as the kernel
    does before it kills.
    """

    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    ram_free_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    cgroup_version: Literal["v1", "v2", "hybrid"] | None = None
    cgroup_path: str | None = None
    """The level with the tightest limit, or the leaf where nothing limits."""
    cgroup_limit_bytes: int | None = None
    """None: no limit is visible."""
    cgroup_high_bytes: int | None = None
    """The level above which the kernel throttles (v2 ``memory.high``)."""
    cgroup_used_bytes: int | None = None
    cgroup_swap_limit_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    memlock_unlimited: bool = False
    cores: int | None = None
    """Logical cores this process may use."""
    container: str | None = None
    """What kind of container this is in, as far as it shows; None: none shows."""
    platform: str | None = None

    @property
    def usable_ram_bytes(self) -> int | None:
        """RAM that a new job can take now: the least of available RAM and what the cgroup has left."""
        left = [self.ram_available_bytes] if self.ram_available_bytes is not None else []
        if self.cgroup_limit_bytes is not None:
            left.append(max(0, self.cgroup_limit_bytes - (self.cgroup_used_bytes or 0)))
        return min(left) if left else None


class Absent(Record, kw_only=True):
    """A kind of accelerator that can't be seen here, and why."""

    vendor: str
    reason: str


class Machine(Record, kw_only=True):
    """A computer as one job sees it; ``absent`` says why a kind of accelerator is missing."""

    gpus: tuple[Device, ...] = ()
    host: Host
    absent: tuple[Absent, ...] = ()
    driver: str | None = None
    cuda_driver_version: str | None = None
    """The newest CUDA that the driver supports."""
