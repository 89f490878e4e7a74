"""The one base of every noun: a frozen, keyword-only record.

Constructors don't check types (decoding from files does); each noun's ``__post_init__`` or its room's door does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_options):
        """Nothing at run time: only type checkers read it (typing has it from Python 3.11 on)."""
        return lambda record: record


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen, keyword-only record. Subclasses repeat ``kw_only=True``: msgspec doesn't inherit it."""


replace = msgspec.structs.replace
"""A copy of a record with some fields changed."""


class Interval(Record, kw_only=True):
    """A size or rate known within bounds: ``low`` ≤ ``likely`` ≤ ``high``, ints in the unit its field's name gives.

    Adding adds the bounds; subtracting takes the other's high from our low, so that the result's bounds hold
    whatever the two turn out to be. ``likely`` is the single best guess, not the middle.
    """

    low: int
    likely: int
    high: int

    @classmethod
    def exact(cls, value: int) -> Interval:
        """An interval without width, for a measured or computed value."""
        return cls(low=value, likely=value, high=value)

    def __add__(self, other: Interval | int) -> Interval:
        if isinstance(other, int):
            other = Interval.exact(other)
        return Interval(
            low=self.low + other.low, likely=self.likely + other.likely, high=self.high + other.high
        )

    __radd__ = __add__

    def __sub__(self, other: Interval | int) -> Interval:
        if isinstance(other, int):
            other = Interval.exact(other)
        return Interval(
            low=self.low - other.high, likely=self.likely - other.likely, high=self.high - other.low
        )
