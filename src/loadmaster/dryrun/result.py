"""DryRun: what one dry run found. No torch here: every view reads this record."""

from __future__ import annotations

from loadmaster.dryrun.card import Card
from loadmaster.memory.ledger import Ledger
from loadmaster.records import Record
from loadmaster.units import format_bytes


class Share(Record, kw_only=True):
    """A part of the peak: of one category, or of one module."""

    name: str
    size_bytes: int


class Held(Record, kw_only=True):
    """Equal blocks that are there at the peak: same category, module, operator, shape, phase and step of birth.
    Numbered layers are one module: ``model.layers.*.mlp``."""

    category: str
    module: str
    op: str
    shape: str
    phase: str
    step: int
    size_bytes: int
    """Of all of them together."""
    count: int


class PhasePeak(Record, kw_only=True):
    """The highest moment of a phase of a step."""

    step: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int


class Moment(Record, kw_only=True):
    """A stretch of the timeline: the highest allocated and reserved bytes of some events in a row, and the allocated ones by
    category (in the order of ``events.CATEGORIES``)."""

    event: int
    step: int
    phase: str
    allocated_bytes: int
    reserved_bytes: int
    by_category: tuple[int, ...]


class OutOfMemory(Record, kw_only=True):
    """Where the program asks for more than the card has."""

    module: str
    op: str
    shape: str
    phase: str
    step: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    capacity_bytes: int
    largest_free_bytes: int
    """The largest free block in what is reserved."""
    inactive_split_bytes: int
    """Free, but in segments that are partly in use: fragmentation."""
    handled: bool = False
    """The program caught the error and went on."""


class Answer(Record, kw_only=True):
    """A question for data that a dry run doesn't have: what was answered, where it was asked, how often."""

    question: str
    answer: str
    asker: str
    count: int


class Setting(Record, kw_only=True):
    """What the same program takes under other settings of the allocator (``PYTORCH_ALLOC_CONF``)."""

    conf: str
    fits: bool | None
    """None: no capacity was given."""
    allocated_bytes: int
    reserved_bytes: int
    retries: int


class Rank(Record, kw_only=True):
    """What one kind of rank of a job on several devices takes; ``ranks`` are those that are alike."""

    name: str
    ranks: tuple[int, ...]
    allocated_bytes: int
    reserved_bytes: int


class DryRun(Record, kw_only=True):
    """One program on one simulated device (of several ranks the worst). Sizes in bytes.

    ``categories`` and ``modules`` each sum to ``peak_allocated_bytes`` exactly. ``skipped`` says what the program asked for
    and didn't get (files it would have written), with how often.
    """

    name: str
    program: str
    """In words: what was run."""
    card: Card
    conf: str
    """The allocator's settings, empty: torch's defaults."""
    versions: tuple[tuple[str, str], ...]
    steps: int
    operators: int
    run_s: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_step: int
    peak_phase: str
    peak_module: str
    peak_op: str
    categories: tuple[Share, ...]
    modules: tuple[Share, ...]
    tensors: tuple[Held, ...]
    phases: tuple[PhasePeak, ...]
    timeline: tuple[Moment, ...]
    ledger: Ledger
    capacity_bytes: int | None = None
    """What the card leaves to PyTorch; None: there is no card to compare with."""
    oom: OutOfMemory | None = None
    answers: tuple[Answer, ...] = ()
    skipped: tuple[tuple[str, int], ...] = ()
    settings: tuple[Setting, ...] = ()
    ranks: tuple[Rank, ...] = ()
    attention: tuple[tuple[str, int], ...] = ()
    """Which kernels scaled_dot_product_attention took, and how often."""
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the card is enough, maybe with the program's own handling; None where none was named."""
        return None if self.capacity_bytes is None else self.oom is None or self.oom.handled

    def __repr__(self) -> str:
        """One line: what ran, whether it fits, the peak. (The fields in full are ``msgspec.to_builtins(dryrun)``.)"""
        judged = {True: ", fits", False: ", runs out of memory", None: ""}[self.fits]
        peak = f"{format_bytes(self.peak_allocated_bytes)} allocated at {self.peak_phase}"
        return f"<DryRun {self.name}{judged}: {peak}, {format_bytes(self.peak_reserved_bytes)} reserved>"

    def __str__(self) -> str:
        """The whole answer as the command line prints it, 80 columns wide."""
        from loadmaster.render.dryrun import dryrun_text
        from loadmaster.render.terminal import Look

        return dryrun_text(self, Look(80)).rstrip()

    def _repr_html_(self) -> str:
        """Tables and the timeline for notebooks; see ``render.dryrun_html``."""
        from loadmaster.render.dryrun_html import dryrun_html

        return dryrun_html(self)
