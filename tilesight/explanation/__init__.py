"""Explanations as data: what limits a candidate and by how much, what a better one does differently, how sure the model is."""

from __future__ import annotations

from .comparison import Difference, Explanation, explain
from .measured import MeasuredRows, measured_rows
from .steps import Step, find_steps
from .values import Asked, Counted, Use, View
from .view import view

__all__ = [
    "Asked",
    "Counted",
    "Difference",
    "Explanation",
    "MeasuredRows",
    "Step",
    "Use",
    "View",
    "explain",
    "find_steps",
    "measured_rows",
    "view",
]
