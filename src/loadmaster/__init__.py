"""Loadmaster predicts GPU and host memory before a job starts, and plans the cheapest way to make it fit."""

from __future__ import annotations

__version__ = "0.1.0"
