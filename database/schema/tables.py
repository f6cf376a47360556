"""Tables and views of the performance database, as SQLAlchemy Core describes them.

Facts (candidates, predictions, builds, measurements, failure reasons) are immutable: the id of a row is the
first 63 bits of SHA-256 over its content. Writing a fact twice therefore changes nothing, two processes may
write the same fact, and databases can be merged. A trial refers to the facts that a session has of a
candidate; of these rows only trials are updated.

Times are UTC. Columns ending in `_us` are microseconds. The migrations in `migrations/versions` make these
tables; a test compares both. Views are in `views.py`.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
)  # oldest first
HEAD = REVISIONS[-1]
VERSION_TABLE = "tilesight_version"

# in SQLite only an INTEGER primary key (not BIGINT) is the row's own address
Id = BigInteger().with_variant(Integer(), "sqlite")

# defaults of columns that were added later
_EMPTY = text("''")
_ZERO = text("0")

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id() -> Column[int]:
    return Column("id", Id, primary_key=True, autoincrement=False)


def _added_text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=_EMPTY)


def _refers(table: str, *, optional: bool = False) -> Column[int]:
    singular = {"software": "software", "failure_reasons": "failure"}.get(table, table.removesuffix("s"))
    return Column(f"{singular}_id", Id, ForeignKey(f"{table}.id"), nullable=optional)


software = Table(
    "software",
    metadata,
    _id(),
    Column("versions", JSON, nullable=False),  # name -> version, names sorted
    _added_text("code_key"),  # hash of the versions on which generated code depends: `code_software`
    _added_text("time_key"),  # hash of the versions on which its time depends: `time_software`
)

environments = Table(
    "environments",
    metadata,
    _id(),
    Column("device", Text, nullable=False),  # the driver's name; "" if nothing is measured
    _refers("software"),
    Column(
        "observed", JSON, nullable=False
    ),  # further observations of a measurement: uuid, driver, compiler, ...
    # from `observed`, else from `software`, else ""
    *(_added_text(name) for name in ("uuid", "driver", "toolkit", "tilelang", "torch")),
)

templates = Table(
    "templates",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
)

targets = Table(
    "targets",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("arch", Text, nullable=False),
)

workloads = Table(
    "workloads",
    metadata,
    _id(),
    Column("key", Text, nullable=False),
    Column("operator", Text, nullable=False),
    Column("dtype", Text, nullable=False),
    Column("dims", JSON, nullable=False),
    Column("attrs", JSON, nullable=False),
    Column("name", Text),  # published name, a label only
    Index(None, "operator", "dtype"),
)

workload_dims = Table(
    "workload_dims",
    metadata,
    _refers("workloads"),
    Column("dim", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    PrimaryKeyConstraint("workload_id", "dim"),
    Index(None, "dim", "size"),
)

candidates = Table(
    "candidates",
    metadata,
    _id(),
    _refers("templates"),
    _refers("workloads"),
    Column("arch", Text, nullable=False),
    Column("config", Text, nullable=False),  # canonical JSON: `Config.key`
    _added_text("dynamic"),  # dimensions that the kernel takes at run time, separated by commas
    Index(None, "workload_id", "template_id", "arch"),
)

predictions = Table(
    "predictions",
    metadata,
    _id(),
    _refers("candidates"),
    _refers("targets"),
    _refers("software"),
    Column("model", Text, nullable=False),  # the context's model version
    Column("stated_model", Text, nullable=False),  # the prediction's own model name
    Column("latency_us", Double, nullable=False),
    Column("ranking_us", Double),  # `Prediction.ranking_us`, by which candidates are ordered
    Column("limiting", Text, nullable=False),
    Column("uncertainty", Double, nullable=False),
    Column("utilization", JSON, nullable=False),
    Column("terms_us", JSON, nullable=False),
    Column("notes", JSON, nullable=False),
    Column("created_at", DateTime, nullable=False),
    Index(None, "candidate_id"),
)

failure_reasons = Table(
    "failure_reasons",
    metadata,
    _id(),
    Column("kind", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

builds = Table(
    "builds",
    metadata,
    _id(),
    _refers("candidates"),
    _refers("software"),
    Column("artifact", Text),
    Column("binary", Text, nullable=False, server_default=_EMPTY),  # hash of the machine code; "" if unknown
    Column("entry", Text, nullable=False),
    Column("resources", JSON, nullable=False),
    Column("compiler", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    _refers("failure_reasons", optional=True),
    Column("created_at", DateTime, nullable=False),
    Index(None, "candidate_id"),
)

measurements = Table(
    "measurements",
    metadata,
    _id(),
    _refers("candidates"),
    _refers("environments"),
    Column("samples_us", JSON, nullable=False),  # in the order taken
    Column("sample_count", Integer, nullable=False),
    Column("latency_us", Double),  # median of the samples
    Column("relative_error", Double),
    Column("protocol", JSON, nullable=False),
    Column(
        "protocol_key", Text, nullable=False, server_default=_EMPTY
    ),  # `Context.protocol`; "" is the first version's one
    Column(
        "observed", JSON, nullable=False, server_default=text("'{}'")
    ),  # of the device during the measurement: name -> number
    _refers("failure_reasons", optional=True),
    Column("created_at", DateTime, nullable=False),
    Index(None, "candidate_id"),
)

sessions = Table(
    "sessions",
    metadata,
    _id(),
    Column("context_key", Text, nullable=False),
    _refers("templates"),
    _refers("workloads"),
    _refers("targets"),
    _refers("environments"),
    Column("model", Text, nullable=False),
    Column("protocol", Text, nullable=False, server_default=_EMPTY),  # `Context.protocol`
    Column("effort", Text, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("options", JSON, nullable=False),
    Column("options_key", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("owner", Text, nullable=False),  # host, process and its start time: whether the session still runs
    Column("started_at", DateTime, nullable=False),
    Column("finished_at", DateTime),
    Column("seconds", Double, nullable=False),
    Column("flops", Double, nullable=False),  # of the workload
    Column("min_bytes", Double, nullable=False),
    Column("census", JSON, nullable=False),
    Column("counts", JSON, nullable=False),  # number of trials by status, at its end
    Column("messages", JSON, nullable=False),
    Column("decision", JSON(none_as_null=True)),  # winner, tied configs, reason
    Column("winner_id", Id, ForeignKey("candidates.id")),  # the decision's winner, to join with
    _added_text("dynamic"),  # `Context.dynamic`
    # dispatch looks up sessions by it: equal for contexts that differ only in sizes
    Column("shape_family", BigInteger, nullable=False, server_default=_ZERO),
    Index(None, "context_key"),
    Index(None, "workload_id"),
    Index(None, "shape_family", "workload_id", "dynamic"),
)

trials = Table(
    "trials",
    metadata,
    _refers("sessions"),
    _refers("candidates"),
    Column("status", Text, nullable=False),
    _refers("predictions", optional=True),
    _refers("builds", optional=True),
    _refers("measurements", optional=True),
    _refers("failure_reasons", optional=True),
    Column("fingerprint", Text, nullable=False),
    Column("lowering_seconds", Double, nullable=False),
    Column("recorded_at", DateTime, nullable=False),
    Column("measured_us", Double),  # `TrialRecord.measured_us`; only of verified trials
    PrimaryKeyConstraint("session_id", "candidate_id"),
    Index(None, "candidate_id"),
    sqlite_with_rowid=False,
)

# to find a session's fastest trials
Index(
    "ix_trials_measured",
    trials.c.session_id,
    trials.c.measured_us,
    sqlite_where=trials.c.measured_us.is_not(None),
    postgresql_where=trials.c.measured_us.is_not(None),
)

baselines = Table(
    "baselines",
    metadata,
    _refers("sessions"),
    Column("position", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("samples_us", JSON, nullable=False),
    Column("latency_us", Double, nullable=False),
    PrimaryKeyConstraint("session_id", "position"),
)

parametric_profiles = Table(
    "parametric_profiles",
    metadata,
    _id(),
    Column("profile_key", Text, nullable=False),  # hash of the five columns after it
    Column("template", Text, nullable=False),
    Column("template_version", Text, nullable=False),
    Column("arch", Text, nullable=False),  # and what else of a target the lowering reads
    Column("shape_class", Text, nullable=False),
    Column("reader", Text, nullable=False),  # version of the code that makes profiles from templates
    Column("config", Text, nullable=False),  # canonical JSON: `Config.key`
    Column("body", LargeBinary, nullable=False),  # JSON, compressed by zlib
    Column("created_at", DateTime, nullable=False),
    Index(None, "profile_key"),
)

calibrations = Table(
    "calibrations",
    metadata,
    _id(),
    Column("name", Text, nullable=False),  # name of the target that it made
    Column("base", Text, nullable=False),  # name of the target that it started from
    Column("device", Text, nullable=False),
    Column("uuid", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),  # of the target that it made: `targets.fingerprint`
    Column("figures", JSON, nullable=False),  # path -> value, of the measured figures
    Column("readings", JSON, nullable=False),  # path -> value as measured, spread, samples, method
    Column("notes", JSON, nullable=False),
    _refers("software"),
    Column("created_at", DateTime, nullable=False),
    Index(None, "name"),
)

dispatch_misses = Table(
    "dispatch_misses",
    metadata,
    _id(),  # hash of workload, target, device and template
    _refers("workloads"),
    Column("target", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("count", BigInteger, nullable=False),  # calls since `first_at`
    Column(
        "config", Text, nullable=False
    ),  # config of the kernel that was called instead, canonical JSON: `Config.key`
    Column("source", Text, nullable=False),  # where that config came from: `dispatch.Source`
    Column("expected_us", Double),  # time of one call
    Column("first_at", DateTime, nullable=False),
    Column("last_at", DateTime, nullable=False),
    Column(
        "batch", BigInteger, nullable=False, server_default=_ZERO
    ),  # random number of the batch that was added last
    Index(None, "workload_id"),
)
