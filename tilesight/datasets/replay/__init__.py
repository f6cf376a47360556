"""Replays: search strategies compared without a device, on recorded measurements."""

from __future__ import annotations

from .curves import Curve, CurvePoint, CurveSummary, Goal
from .replay_runner import Replay, replay
from .strategies import STRATEGIES

__all__ = ["STRATEGIES", "Curve", "CurvePoint", "CurveSummary", "Goal", "Replay", "replay"]
