"""Replays: search strategies compared without a device, on recorded measurements."""

from __future__ import annotations

from .curves import Curve, Goal, Point, Summary
from .runner import Replay, replay
from .strategies import STRATEGIES

__all__ = ["STRATEGIES", "Curve", "Goal", "Point", "Replay", "Summary", "replay"]
