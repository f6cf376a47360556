"""Cost models: from kernel profiles to predictions."""

from __future__ import annotations

from .model import CostModel

__all__ = ["CostModel", "default_model"]


def default_model() -> CostModel:
    """The model that commands use where none is named."""
    from .analytical import AnalyticalModel

    return AnalyticalModel()
