"""The one base of every noun: a frozen, keyword-only record.

Constructors don't check types (decoding from files does); each noun's ``__post_init__`` or its room's door does.
"""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen, keyword-only record. Subclasses repeat ``kw_only=True``: msgspec doesn't inherit it."""


replace = msgspec.structs.replace
"""A copy of a record with some fields changed."""
