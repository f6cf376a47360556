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
    from .api.collectives import predict_collective
    from .api.explaining import explain
    from .api.exporting import Exported, export
    from .api.history import compare_sessions, session, sessions
    from .api.misses import tune_misses
    from .api.planning import plan
    from .api.prediction import predict
    from .api.reporting import write_report
    from .api.timeline_files import write_timeline
    from .api.timelines import kernel_timeline, session_timeline
    from .api.trace_workloads import TracedResults, tune_workloads
    from .api.tuning import rank, tune
    from .benchmarks.run import bench
    from .benchmarks.table import BenchRow, BenchTable
    from .costmodel.model import CostModel
    from .datasets.replay import Replay, replay
    from .decorator import Autotuned, Tuned, autotune
    from .dispatch.dispatcher import Dispatcher
    from .dispatch.group.group_dispatcher import GroupDispatcher
    from .dispatch.make import dispatcher
    from .dispatch.select.choice import Choice, ChoiceSource
    from .dispatch.table.table_file import DispatchTable, read_table, write_table
    from .errors import Failure, FailureKind, GroupError, TileSightError
    from .explanation import Explanation
    from .planner.result import PlanResult
    from .problem.candidate import Candidate
    from .problem.operator import Operator
    from .problem.space import Config, Constraint, Parameter, SearchSpace
    from .problem.template import KernelTemplate
    from .problem.workload import Workload
    from .profile.values import KernelProfile
    from .records.recorded_session import RecordedSession, SessionComparison, SessionSummary
    from .records.session import Baseline, Context, Effort, SessionResult, SessionState
    from .records.timeline import Timeline
    from .records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
    from .records.winners import Gain
    from .target.spec import Target, load_target, node_names, target_names
    from .tuner.observers import Observer
    from .tuner.options import TuneOptions

_HOMES = {
    "api.collectives": ("predict_collective",),
    "api.explaining": ("explain",),
    "api.exporting": ("Exported", "export"),
    "api.history": ("compare_sessions", "session", "sessions"),
    "api.misses": ("tune_misses",),
    "api.planning": ("plan",),
    "api.prediction": ("predict",),
    "api.rechecking": ("recheck",),
    "api.reporting": ("write_report",),
    "api.shapes_files": ("tune_file",),
    "api.trace_workloads": ("TracedResults", "tune_workloads"),
    "api.timeline_files": ("write_timeline",),
    "api.timelines": ("kernel_timeline", "session_timeline"),
    "api.tuning": ("rank", "tune"),
    "benchmarks.run": ("bench",),
    "benchmarks.table": ("BenchRow", "BenchTable"),
    "tuner.options": ("TuneOptions",),
    "costmodel.model": ("CostModel",),
    "datasets.replay": ("Replay", "replay"),
    "decorator": ("Autotuned", "Tuned", "autotune"),
    "dispatch.dispatcher": ("Dispatcher",),
    "dispatch.group.group_dispatcher": ("GroupDispatcher",),
    "dispatch.make": ("dispatcher",),
    "dispatch.select.choice": ("Choice", "ChoiceSource"),
    "dispatch.table.table_file": ("DispatchTable", "read_table", "write_table"),
    "errors": ("Failure", "FailureKind", "GroupError", "TileSightError"),
    "explanation": ("Explanation",),
    "planner.result": ("PlanResult",),
    "rechecking.result": ("RecheckResult",),
    "problem.candidate": ("Candidate",),
    "problem.operator": ("Operator",),
    "problem.space": ("Config", "Constraint", "Parameter", "SearchSpace"),
    "problem.template": ("KernelTemplate",),
    "problem.workload": ("Workload",),
    "profile.values": ("KernelProfile",),
    "records.recorded_session": ("RecordedSession", "SessionComparison", "SessionSummary"),
    "records.session": ("Baseline", "Context", "Effort", "SessionResult", "SessionState"),
    "records.timeline": ("Timeline",),
    "records.trial": ("BuildResult", "Measurement", "Prediction", "Status", "TrialRecord"),
    "records.winners": ("Gain",),
    "target.spec": ("Target", "load_target", "node_names", "target_names"),
    "tuner.observers": ("Observer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Autotuned",
    "Baseline",
    "BenchRow",
    "BenchTable",
    "BuildResult",
    "Candidate",
    "Choice",
    "ChoiceSource",
    "Config",
    "Constraint",
    "Context",
    "CostModel",
    "DispatchTable",
    "Dispatcher",
    "Effort",
    "Explanation",
    "Exported",
    "Failure",
    "FailureKind",
    "Gain",
    "GroupDispatcher",
    "GroupError",
    "KernelProfile",
    "KernelTemplate",
    "Measurement",
    "Observer",
    "Operator",
    "Parameter",
    "PlanResult",
    "Prediction",
    "RecheckResult",
    "RecordedSession",
    "Replay",
    "SearchSpace",
    "SessionComparison",
    "SessionResult",
    "SessionState",
    "SessionSummary",
    "Status",
    "Target",
    "TileSightError",
    "Timeline",
    "TracedResults",
    "TrialRecord",
    "TuneOptions",
    "Tuned",
    "Workload",
    "__version__",
    "autotune",
    "bench",
    "compare_sessions",
    "dispatcher",
    "explain",
    "export",
    "kernel_timeline",
    "load_target",
    "node_names",
    "plan",
    "predict",
    "predict_collective",
    "rank",
    "read_table",
    "recheck",
    "replay",
    "session",
    "session_timeline",
    "sessions",
    "target_names",
    "tune",
    "tune_file",
    "tune_misses",
    "tune_workloads",
    "write_report",
    "write_table",
    "write_timeline",
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
