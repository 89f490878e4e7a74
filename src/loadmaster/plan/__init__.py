"""From a ledger and a device to a verdict, and the changes that would make the job fit.

It knows preferences, not how to start anything. ``make_plan`` is its door; ``verdict`` says what fits, ``ladder`` what
each change is worth and the first combination that fits. A new move is a file in ``jobs/changes``, not here.
"""

from __future__ import annotations

from loadmaster.plan.make import make_plan
from loadmaster.plan.plan import Combination, Plan, Rung, Verdict

__all__ = ["Combination", "Plan", "Rung", "Verdict", "make_plan"]
