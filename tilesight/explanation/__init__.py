"""Explanations: what limits a candidate, how it differs from a better one, how sure the model is."""

from __future__ import annotations

from .comparison import CandidateDifference, Explanation, explain
from .config_path import Step, find_steps
from .explain_config import ConfigLowerings, explain_config
from .measured_rows import MeasuredRows, measured_rows
from .view import view
from .view_values import CandidateView, CounterComparison, RequestedWork, ResourceUse

__all__ = [
    "CandidateDifference",
    "CandidateView",
    "ConfigLowerings",
    "CounterComparison",
    "Explanation",
    "MeasuredRows",
    "RequestedWork",
    "ResourceUse",
    "Step",
    "explain",
    "explain_config",
    "find_steps",
    "measured_rows",
    "view",
]
