"""What tables, views and their columns are, in words, for tools that show the database. docs/database.md says
more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Description:
    """A table or view. `columns` are those that mean something else in it than `COLUMNS` says."""

    title: str
    text: str
    sort_desc: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CannedQuery:
    """A statement to begin with. Its parameters are named `:name`."""

    title: str
    text: str
    sql: str


_FACT = "key of the row: hash of its content"
_CREATED = "when the row was written, UTC"
_SOFTWARE = "key of the software"
_FAILURE = "key of the reason, if it failed"

# columns of the views, and of tables by the same names, that mean the same in each
COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "session_id": "the tuning session; ids grow with time",
        "effort": "how many candidates the session tried: glance, predict, build, quick, full or exhaustive",
        "session_state": "running, complete or interrupted",
        "operator": "what is computed",
        "workload": "canonical key of operator, dimensions, attributes and dtype",
        "shape": "published name of the workload",
        "dtype": "type of the elements",
        "dims": "dimensions in elements (JSON)",
        "attrs": "attributes of the workload (JSON)",
        "template": "the kernel template",
        "template_version": "hash of its code",
        "target": "description of the hardware for which is tuned",
        "target_fingerprint": "hash of the target's figures",
        "arch": "architecture for which code is made",
        "device": "the driver's name of the measuring device; empty if nothing was measured",
        "software": "versions on which results depend (JSON)",
        "model": "version of the cost model",
        "config": "the parameters of the template (canonical JSON)",
        "dynamic": "dimensions that the kernel takes at run time",
        "status": "predicted, built, noisy (a disturbed time), measured (not checked), verified or failed",
        "place": "1 is the fastest of its workload, target, device, software and protocol",
        "predicted_us": "the model's time; never a measurement",
        "ranking_us": "the model's score for the order of candidates",
        "limiting": "the resource that sets the pace, by the model",
        "uncertainty": "one sigma of the predicted time, as a share of it",
        "utilization": "predicted busy share of each resource (JSON)",
        "terms_us": "terms of the prediction (JSON)",
        "prediction_notes": "charges that are conservative, and why (JSON)",
        "measured_us": "median time of a kernel whose results were checked",
        "latency_us": "the measured time if status is verified, else the predicted one",
        "tflops": "floating-point operations of the workload over the time, in TFLOP/s",
        "gb_per_s": "least bytes of the workload over the time",
        "vendor_us": "the fastest vendor library on the same workload, device, software and protocol",
        "relative_error": "of the results, against the reference",
        "sample_count": "number of samples of the time",
        "samples_us": "the samples in the order taken (JSON)",
        "protocol": "conditions of the measurement (JSON)",
        "protocol_key": "conditions of the session's measurements; times of different ones do not compare",
        "observed": "clock, power and temperature meanwhile (JSON)",
        "environment": "device, driver, compiler and versions of the measurement (JSON)",
        "artifact": "path of the built library",
        "binary": "hash of the machine code",
        "compiler": "name and version",
        "resources": "registers, spills and shared memory that the compiler reports (JSON)",
        "build_seconds": "time of the build",
        "failure_kind": "stage and kind of the failure that ended the trial",
        "failure_message": "its message",
        "failure_detail": "the end of the output of the failing stage",
        "kind": "stage and kind of the failure",
        "message": "its message",
        "detail": "the end of the output of the failing stage",
        "fingerprint": "hash of the generated device code",
        "lowering_seconds": "time of the lowering; variants of a config share one",
        "recorded_at": "when the row was written, UTC",
        "absolute_relative_error": "the same without its sign",
        "calls": "number of dispatched calls without a record",
        "expected_us": "time of one call with the kernel that was called instead",
        "cost_us": "time of all these calls",
        "source": "where the config that was called instead came from",
        "first_at": "the first of these calls, UTC",
        "last_at": "the last of these calls, UTC",
        "candidate_id": "key of the candidate",
        "prediction_id": "key of the prediction",
        "build_id": "key of the build",
        "measurement_id": "key of the measurement",
        "workload_id": "key of the workload",
        "target_id": "key of the target",
        "environment_id": "key of the environment",
    }
)

DESCRIPTIONS: Mapping[str, Description] = MappingProxyType(
    {
        "records": Description(
            "Records", "One row for each candidate of each session, with everything that is known of it."
        ),
        "leaderboard": Description(
            "Leaderboard",
            "Candidates whose results were checked, with their latest times. Those that were ever wrong on "
            "the device are left out.",
        ),
        "best": Description(
            "Best configs",
            "One row for each workload, target and protocol: the measured winner, or the best predicted "
            "config where nothing was measured; status says which.",
        ),
        "failures": Description("Failures", "Candidates that failed, with the reasons."),
        "prediction_error": Description(
            "Errors of predictions",
            "Each prediction of a measured candidate beside its measured time.",
            columns={"relative_error": "predicted over measured time, less one"},
        ),
        "misses": Description("Misses", "Workloads that dispatchers were called with and had no record of."),
        "software": Description(
            "Software",
            "Sets of versions on which results depend.",
            columns={
                "id": _FACT,
                "versions": "name and version of each package and compiler (JSON)",
                "code_key": "hash of the versions on which generated code depends",
                "time_key": "hash of the versions on which its time depends",
            },
        ),
        "environments": Description(
            "Environments",
            "Devices and software that results are of.",
            columns={
                "id": _FACT,
                "software_id": _SOFTWARE,
                "observed": "what a measurement found beside: uuid, driver, compiler and more (JSON)",
                "uuid": "of the device; empty if unknown",
                "driver": "version of the driver; empty if unknown",
                "toolkit": "version of CUDA's or ROCm's compiler; empty if unknown",
                "tilelang": "version of TileLang; empty if unknown",
                "torch": "version of PyTorch; empty if unknown",
            },
        ),
        "templates": Description(
            "Templates",
            "Kernel templates by the hash of their code.",
            columns={"id": _FACT, "name": "of the template", "version": "hash of its code"},
        ),
        "targets": Description(
            "Targets",
            "Descriptions of hardware by the hash of their figures.",
            columns={"id": _FACT, "name": "of the target", "fingerprint": "hash of its figures"},
        ),
        "workloads": Description(
            "Workloads",
            "Problems: operator, dimensions, dtype and attributes.",
            columns={
                "id": _FACT,
                "key": "canonical key of operator, dimensions, attributes and dtype",
                "name": "published name of its shape; a label only",
            },
        ),
        "workload_dims": Description(
            "Dimensions of workloads",
            "One row for each dimension of a workload.",
            columns={"dim": "name of the dimension", "size": "in elements"},
        ),
        "candidates": Description(
            "Candidates",
            "Configs of templates for workloads.",
            columns={"id": _FACT, "template_id": "key of the template"},
        ),
        "predictions": Description(
            "Predictions",
            "What models predicted of candidates.",
            columns={
                "id": _FACT,
                "software_id": _SOFTWARE,
                "stated_model": "name of the model that the prediction itself states",
                "latency_us": "the predicted time",
                "notes": "charges that are conservative, and why (JSON)",
                "created_at": _CREATED,
            },
        ),
        "builds": Description(
            "Builds",
            "Built kernels and failed builds.",
            columns={
                "id": _FACT,
                "software_id": _SOFTWARE,
                "entry": "name of the function in the library",
                "seconds": "time of the build",
                "failure_id": _FAILURE,
                "created_at": _CREATED,
            },
        ),
        "measurements": Description(
            "Measurements",
            "The samples of each run.",
            columns={
                "id": _FACT,
                "latency_us": "median of the samples",
                "protocol_key": "conditions of the measurement; times of different ones do not compare",
                "failure_id": _FAILURE,
                "created_at": _CREATED,
            },
        ),
        "failure_reasons": Description(
            "Reasons of failures", "Kinds, messages and ends of outputs.", columns={"id": _FACT}
        ),
        "sessions": Description(
            "Sessions",
            "Tuning runs and their contexts.",
            sort_desc="id",
            columns={
                "id": "of the session; ids grow with time",
                "context_key": "hash of everything that the validity of its results depends on",
                "template_id": "key of the template",
                "protocol": "conditions of its measurements; times of different ones do not compare",
                "seed": "of its random choices",
                "options": "what it was asked for (JSON)",
                "options_key": "hash of these options",
                "state": "running, complete or interrupted",
                "owner": "host, process and its start, by which others see whether it still runs",
                "started_at": "when it began, UTC",
                "finished_at": "when it ended, UTC",
                "seconds": "its duration",
                "flops": "floating-point operations of the workload",
                "min_bytes": "bytes that must cross device memory at least",
                "census": "numbers of legal and illegal configs (JSON)",
                "counts": "number of its trials by status, at its end (JSON)",
                "messages": "what it reported to the user (JSON)",
                "decision": "the winner, configs as fast as it, and the reason (JSON)",
                "winner_id": "key of the winning candidate",
                "shape_family": "hash of the context without sizes, by which dispatchers find sessions",
            },
        ),
        "trials": Description(
            "Trials",
            "Candidates in sessions, with references to their facts.",
            columns={"failure_id": _FAILURE},
        ),
        "parametric_profiles": Description(
            "Cached profiles",
            "Profiles of configs for all workloads of a shape class.",
            columns={
                "id": _FACT,
                "profile_key": "hash of template, architecture, shape class and reader",
                "shape_class": "workloads for which a config lowers to the same IR except for numbers",
                "reader": "version of the code that reads profiles",
                "body": "the profile: JSON, compressed by zlib",
                "created_at": _CREATED,
            },
        ),
        "baselines": Description(
            "Baselines",
            "Times of vendor libraries in sessions.",
            columns={
                "position": "number of the implementation in its session",
                "name": "of the implementation",
                "latency_us": "median of the samples",
            },
        ),
        "calibrations": Description(
            "Calibrations",
            "What `tilesight calibrate` measured.",
            columns={
                "id": _FACT,
                "name": "of the target that it made",
                "base": "name of the target that it began with",
                "device": "the driver's name of the measured device",
                "uuid": "of the device; empty if unknown",
                "fingerprint": "hash of the figures of the target that it made",
                "figures": "path and value of each measured figure, in the units of target files (JSON)",
                "readings": "path, value as measured, spread, samples and method (JSON)",
                "notes": "what was left out, and why (JSON)",
                "software_id": _SOFTWARE,
                "created_at": _CREATED,
            },
        ),
        "dispatch_misses": Description(
            "Counted misses",
            "Calls of dispatchers without a record.",
            columns={
                "id": "key of the row: hash of workload, target, device and template",
                "count": "number of such calls",
                "batch": "random number of the calls that were added last, so that none are added twice",
                "config": "of the kernel that was called instead (canonical JSON)",
            },
        ),
    }
)


def column_text(table: str, column: str) -> str:
    """What a column of a table or view means."""
    return DESCRIPTIONS[table].columns.get(column) or COLUMNS[column]


QUERIES: Mapping[str, CannedQuery] = MappingProxyType(
    {
        "fastest_of_a_workload": CannedQuery(
            "The fastest configs of a workload",
            "By the published name of its shape, such as M0.",
            "SELECT place, target, device, protocol_key, measured_us, tflops, config FROM leaderboard "
            "WHERE shape = :shape ORDER BY target, protocol_key, place LIMIT 50",
        ),
        "against_the_vendor": CannedQuery(
            "Against the vendor's library",
            "How fast the best configs are beside it; above 1 ours is faster.",
            "SELECT operator, shape, workload, target, protocol_key, latency_us, vendor_us, "
            "vendor_us / latency_us AS times_as_fast FROM best "
            "WHERE status = 'verified' AND vendor_us IS NOT NULL ORDER BY times_as_fast",
        ),
        "errors_of_the_model": CannedQuery(
            "Errors of the model",
            "By operator and version of the model: mean absolute error and mean error.",
            "SELECT operator, model, COUNT(*) AS candidates, AVG(absolute_relative_error) AS mean_error, "
            "AVG(relative_error) AS bias FROM prediction_error GROUP BY operator, model ORDER BY mean_error",
        ),
        "why_candidates_fail": CannedQuery(
            "Why candidates fail",
            "By operator, target and kind, with an example.",
            "SELECT operator, target, kind, COUNT(*) AS candidates, MIN(message) AS example FROM failures "
            "GROUP BY operator, target, kind ORDER BY candidates DESC",
        ),
        "what_limits": CannedQuery(
            "What limits measured candidates",
            "By operator, as the model sees it.",
            "SELECT operator, target, limiting, COUNT(*) AS candidates, MIN(measured_us) AS least_us "
            "FROM records WHERE status = 'verified' GROUP BY operator, target, limiting "
            "ORDER BY operator, target, candidates DESC",
        ),
        "candidates_of_a_session": CannedQuery(
            "The candidates of a session",
            "By the id of the session, the best first.",
            "SELECT status, measured_us, predicted_us, uncertainty, limiting, failure_kind, config "
            "FROM records WHERE session_id = CAST(:session AS INTEGER) "
            "ORDER BY measured_us IS NULL, measured_us, ranking_us LIMIT 1000",
        ),
        "cost_of_sessions": CannedQuery(
            "What sessions cost, and what they found",
            "The latest sessions first.",
            "SELECT s.id, w.key AS workload, s.effort, s.state, s.seconds, "
            "(SELECT COUNT(*) FROM trials t WHERE t.session_id = s.id) AS candidates, "
            "(SELECT MIN(t.measured_us) FROM trials t WHERE t.session_id = s.id) AS best_us "
            "FROM sessions s JOIN workloads w ON w.id = s.workload_id ORDER BY s.id DESC LIMIT 50",
        ),
        "costly_misses": CannedQuery(
            "What dispatch misses cost",
            "The most costly first; `tilesight tune --misses` tunes them.",
            "SELECT operator, dims, target, calls, cost_us / 1e6 AS seconds, source FROM misses "
            "ORDER BY cost_us DESC LIMIT 50",
        ),
    }
)


_UNITS = {"_us": "us", "seconds": "s", "gb_per_s": "GB/s"}  # by the end of the name


def unit(column: str) -> str:
    """The unit of a column of numbers, as its name tells; "" if it has none."""
    return next((unit for ending, unit in _UNITS.items() if column.endswith(ending)), "")
