"""Facts as CSV files, each row with its source; no code beyond opening them.

SOURCES.md beside this file says where the rows come from, under which licences, and how to read the columns.
To add a GPU: one row in ``gpus.csv`` (and, where a real output was seen, one in ``gpu_memory_observations.csv``).
"""

from __future__ import annotations

from pathlib import Path


def path(name: str) -> Path:
    """Where a data file lies, for example ``path("gpus.csv")``."""
    return Path(__file__).with_name(name)
