"""Gpu: what is known about a kind of accelerator, as one row of the catalogue."""

from __future__ import annotations

from loadmaster.records import Record


class Gpu(Record, kw_only=True):
    """A kind of accelerator in one memory size. What nobody has written down is None, never 0.

    Three totals that are never mixed up: ``memory_marketed_bytes`` is the size on the box (its "GB" are GiB, except on
    HBM cards whose makers round), ``memory_nvml_bytes`` what nvidia-smi prints with the default ECC state on a recent
    driver, ``memory_cuda_bytes`` what CUDA and torch report on Linux (``_low`` and ``_high``: over the outputs seen).
    Rates are dense, fp16 and bf16 with fp32 accumulation. ``source`` names where the row comes from (``SOURCES.md``).
    """

    name: str
    vendor: str
    aliases: tuple[str, ...] = ()
    architecture: str | None = None
    compute_capability: str | None = None
    """CUDA's compute capability, or the gfx target of an AMD card."""
    year: int | None = None
    memory_marketed_bytes: int
    memory_nvml_bytes: int | None = None
    memory_cuda_bytes: int | None = None
    memory_cuda_low_bytes: int | None = None
    memory_cuda_high_bytes: int | None = None
    memory_type: str | None = None
    bandwidth_gb_per_s: float | None = None
    unified_memory: bool = False
    """The CPU's memory is the GPU's too (Apple, Jetson, GB10, Strix Halo), or coherently reachable (GH200, GB200)."""
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    interconnect: str | None = None
    interconnect_gb_per_s: float | None = None
    """Both directions together."""
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    tdp_w: float | None = None
    source: str
    notes: str = ""

    @property
    def is_geforce(self) -> bool:
        """A consumer NVIDIA card: its driver reserve differs from that of other cards of its generation."""
        return self.vendor == "NVIDIA" and any("geforce" in alias.lower() for alias in self.aliases)

    @property
    def shares_system_memory(self) -> bool:
        """The card has no memory of its own: a job's share comes out of system memory."""
        return self.unified_memory and (self.memory_type or "").upper().startswith("LPDDR")
