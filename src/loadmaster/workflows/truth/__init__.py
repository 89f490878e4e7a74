"""``loadmaster truth``: predictions scored against published measurements, row by row, group by group.

``score_set`` reads a set, asks ``memory.predict`` for each row and scores the answers. A spelling is added in
``words``, a field of Job in ``mapping``; the arithmetic is in ``scoring``.
"""

from __future__ import annotations

from loadmaster.workflows.truth.report import Report, Worst, score_set
from loadmaster.workflows.truth.rows import Row, RowSet, read_rows
from loadmaster.workflows.truth.scoring import GroupScore, Outcome, Score

__all__ = ["GroupScore", "Outcome", "Report", "Row", "RowSet", "Score", "Worst", "read_rows", "score_set"]
