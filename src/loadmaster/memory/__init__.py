"""The ledger: bytes by component, tier and phase, from a model, a job and a machine's numbers, in milliseconds.

It knows tensors and when they live, not where they will run beyond a few numbers of the device. ``predict`` gives one
job's Ledger, ``evaluate`` the peaks of very many jobs at once. To add a component, see ``components``; a kind of layer,
``blocks``.
"""

from __future__ import annotations

from loadmaster.memory.ledger import Entry, Ledger, Peak, PhaseTotal
from loadmaster.memory.prediction import predict
from loadmaster.memory.vectorised import evaluate

__all__ = ["Entry", "Ledger", "Peak", "PhaseTotal", "evaluate", "predict"]
