"""How far predictions are from what was measured.

``scoring`` is the arithmetic over many measurements: errors, percentiles, false fits, and the nouns that say them.
"""

from __future__ import annotations

from loadmaster.calibrate.scoring import GroupScore, Outcome, Report, Score, Worst

__all__ = ["GroupScore", "Outcome", "Report", "Score", "Worst"]
