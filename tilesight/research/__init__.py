"""Public names for research on cost models: lowering, profiles, models, datasets, training, held-out errors.

They are functions and values of the line, gathered here so that notebooks need no module below `tilesight`.
"""

from __future__ import annotations

from ..costmodel.analytical.analytical_model import AnalyticalModel
from ..costmodel.analytical.headroom import limits
from ..costmodel.extract import read_profiles
from ..costmodel.training.evaluation import RANDOM, evaluate
from ..costmodel.training.fold import ALONE, ANALYTICAL, BOTH, CONFIGS
from ..costmodel.training.measured import codes, measured_rows
from ..costmodel.training.train import describe, train_correction
from ..kernels import operator, template_for
from ..lowering.lower import Lowered, lower
from ..records.dataset import Dataset, profiles_of, read_dataset
from ..target.spec import Figure

__all__ = [
    "ALONE",
    "ANALYTICAL",
    "BOTH",
    "CONFIGS",
    "RANDOM",
    "AnalyticalModel",
    "Dataset",
    "Figure",
    "Lowered",
    "codes",
    "describe",
    "evaluate",
    "limits",
    "lower",
    "measured_rows",
    "operator",
    "profiles_of",
    "read_dataset",
    "read_profiles",
    "template_for",
    "train_correction",
]
