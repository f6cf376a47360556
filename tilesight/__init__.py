"""TileSight: tune GPU kernels written in TileLang by knowing before trying.

    import tilesight

    results = tilesight.tune("matmul", target="h200", shape="M0")
    ranking = tilesight.rank("flash_attention", target="h100", shape="FA4")
    prediction = tilesight.predict(prim_func, target="a100")
    reason = tilesight.explain("matmul", target="h200", shape="M0", config="block_m=128,...")

Names are loaded when they are first used: importing this package loads neither torch nor tilelang.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import explain, predict, rank, tune
    from .candidate import Candidate
    from .costmodel.model import CostModel
    from .errors import Failure, FailureKind, TileSightError
    from .explanation import Explanation
    from .observers import Observer
    from .profile import KernelProfile
    from .replaying import Replay, replay
    from .session import Baseline, Context, Effort, SessionResult, State
    from .space import Config, Constraint, Parameter, SearchSpace
    from .target import Target, load_target, target_names
    from .template import KernelTemplate, Operator
    from .trial import BuildResult, Measurement, Prediction, Status, TrialRecord
    from .workload import Workload

_HOMES = {
    "api": ("explain", "predict", "rank", "tune"),
    "candidate": ("Candidate",),
    "costmodel.model": ("CostModel",),
    "errors": ("Failure", "FailureKind", "TileSightError"),
    "explanation": ("Explanation",),
    "observers": ("Observer",),
    "profile": ("KernelProfile",),
    "replaying": ("Replay", "replay"),
    "session": ("Baseline", "Context", "Effort", "SessionResult", "State"),
    "space": ("Config", "Constraint", "Parameter", "SearchSpace"),
    "target": ("Target", "load_target", "target_names"),
    "template": ("KernelTemplate", "Operator"),
    "trial": ("BuildResult", "Measurement", "Prediction", "Status", "TrialRecord"),
    "workload": ("Workload",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Baseline",
    "BuildResult",
    "Candidate",
    "Config",
    "Constraint",
    "Context",
    "CostModel",
    "Effort",
    "Explanation",
    "Failure",
    "FailureKind",
    "KernelProfile",
    "KernelTemplate",
    "Measurement",
    "Observer",
    "Operator",
    "Parameter",
    "Prediction",
    "Replay",
    "SearchSpace",
    "SessionResult",
    "State",
    "Status",
    "Target",
    "TileSightError",
    "TrialRecord",
    "Workload",
    "__version__",
    "explain",
    "load_target",
    "predict",
    "rank",
    "replay",
    "target_names",
    "tune",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'tilesight' has no attribute '{name}'")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
