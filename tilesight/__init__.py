"""TileSight: tune GPU kernels written in TileLang by knowing before trying.

    import tilesight

    results = tilesight.tune("matmul", target="h200", shape="M0")
    ranking = tilesight.rank("flash_attention", target="h100", shape="FA4")
    prediction = tilesight.predict(prim_func, target="a100")
    reason = tilesight.explain("matmul", target="h200", shape="M0", config="block_m=128,...")
    matmul = tilesight.dispatcher("matmul", target="h200", n=8192, k=8192)  # matmul(A, B) for any m

Names are loaded when they are first used: importing this package loads neither torch nor tilelang.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api import explain, plan, predict, rank, tune, tune_misses
    from .autotuning import Autotuned, Tuned, autotune
    from .candidate import Candidate
    from .costmodel.model import CostModel
    from .dispatch.choice import Choice, Source
    from .dispatch.dispatcher import Dispatcher
    from .dispatch.make import dispatcher
    from .dispatch.table import DispatchTable, read_table, write_table
    from .errors import Failure, FailureKind, TileSightError
    from .explanation import Explanation
    from .known import Gain
    from .observers import Observer
    from .planning.result import Planned
    from .profile import KernelProfile
    from .replaying import Replay, replay
    from .session import Baseline, Context, Effort, SessionResult, State
    from .space import Config, Constraint, Parameter, SearchSpace
    from .target import Target, load_target, target_names
    from .template import KernelTemplate, Operator
    from .trial import BuildResult, Measurement, Prediction, Status, TrialRecord
    from .workload import Workload

_HOMES = {
    "api": ("explain", "plan", "predict", "rank", "tune", "tune_misses"),
    "autotuning": ("Autotuned", "Tuned", "autotune"),
    "candidate": ("Candidate",),
    "costmodel.model": ("CostModel",),
    "dispatch.choice": ("Choice", "Source"),
    "dispatch.dispatcher": ("Dispatcher",),
    "dispatch.make": ("dispatcher",),
    "dispatch.table": ("DispatchTable", "read_table", "write_table"),
    "errors": ("Failure", "FailureKind", "TileSightError"),
    "explanation": ("Explanation",),
    "known": ("Gain",),
    "observers": ("Observer",),
    "planning.result": ("Planned",),
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
    "Autotuned",
    "Baseline",
    "BuildResult",
    "Candidate",
    "Choice",
    "Config",
    "Constraint",
    "Context",
    "CostModel",
    "DispatchTable",
    "Dispatcher",
    "Effort",
    "Explanation",
    "Failure",
    "FailureKind",
    "Gain",
    "KernelProfile",
    "KernelTemplate",
    "Measurement",
    "Observer",
    "Operator",
    "Parameter",
    "Planned",
    "Prediction",
    "Replay",
    "SearchSpace",
    "SessionResult",
    "Source",
    "State",
    "Status",
    "Target",
    "TileSightError",
    "TrialRecord",
    "Tuned",
    "Workload",
    "__version__",
    "autotune",
    "dispatcher",
    "explain",
    "load_target",
    "plan",
    "predict",
    "rank",
    "read_table",
    "replay",
    "target_names",
    "tune",
    "tune_misses",
    "write_table",
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
