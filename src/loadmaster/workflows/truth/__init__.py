"""``loadmaster truth``: predictions scored against published measurements, row by row, group by group.

``score_set`` reads a set, asks ``memory.predict`` for each row and scores the answers. A spelling is added in
``words``, a field of Job in ``mapping``; the arithmetic is in ``calibrate.scoring``.
"""

from __future__ import annotations

from loadmaster.workflows.truth.report import default_set, score_set
from loadmaster.workflows.truth.rows import Row, RowSet, read_rows

__all__ = ["Row", "RowSet", "default_set", "read_rows", "score_set"]
