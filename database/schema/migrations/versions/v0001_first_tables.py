"""The first tables. Frozen: it names nothing that later code may change.

Revision: 0001
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None


def _number() -> Any:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str, *, nullable: bool = False) -> Any:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _json(*names: str) -> list[Any]:
    return [sa.Column(name, sa.JSON(), nullable=False) for name in names]


def _double(name: str, *, nullable: bool = False) -> Any:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> Any:
    return sa.Column(name, sa.DateTime(), nullable=nullable)


def _make(
    table: str,
    *columns: Any,
    refers: dict[str, str] | None = None,
    optional: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """Create `table`.

    `refers` and `optional` are its references, column -> table. Keyed by id unless a key is among the
    columns.
    """
    parts: list[Any] = []
    if not any(isinstance(column, sa.PrimaryKeyConstraint) for column in columns):
        parts += [
            sa.Column("id", _number(), autoincrement=False, nullable=False),
            sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        ]
    for references, nullable in ((refers or {}, False), (optional or {}, True)):
        for column, other in references.items():
            parts.append(sa.Column(column, _number(), nullable=nullable))
            parts.append(sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}"))
    op.create_table(table, *parts, *columns, **options)


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def upgrade() -> None:
    _make("software", *_json("versions"))
    _make("environments", _text("device"), *_json("observed"), refers={"software_id": "software"})
    _make("templates", _text("name"), _text("version"))
    _make("targets", _text("name"), _text("fingerprint"), _text("arch"))
    _make(
        "workloads",
        _text("key"),
        _text("operator"),
        _text("dtype"),
        *_json("dims", "attrs"),
        _text("name", nullable=True),
    )
    _index("workloads", "operator", "dtype")
    _make(
        "workload_dims",
        _text("dim"),
        sa.Column("size", sa.BigInteger(), nullable=False),
        _double("log2"),
        sa.PrimaryKeyConstraint("workload_id", "dim", name="pk_workload_dims"),
        refers={"workload_id": "workloads"},
    )
    _index("workload_dims", "dim", "log2")
    _make(
        "candidates",
        _text("arch"),
        _text("config"),
        refers={"template_id": "templates", "workload_id": "workloads"},
    )
    _index("candidates", "workload_id", "template_id", "arch")
    _make("failure_reasons", _text("kind"), _text("message"), _text("detail"))
    _make_facts()
    _make_sessions()


def _make_facts() -> None:
    _make(
        "predictions",
        _text("model"),
        _text("stated_model"),
        _double("latency_us"),
        _text("limiting"),
        _double("uncertainty"),
        *_json("utilization", "terms_us", "notes"),
        _time("created_at"),
        refers={"candidate_id": "candidates", "target_id": "targets", "software_id": "software"},
    )
    _make(
        "builds",
        _text("artifact", nullable=True),
        _text("entry"),
        *_json("resources"),
        _text("compiler"),
        _double("seconds"),
        _time("created_at"),
        refers={"candidate_id": "candidates", "software_id": "software"},
        optional={"failure_id": "failure_reasons"},
    )
    _make(
        "measurements",
        *_json("samples_us"),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        _double("latency_us", nullable=True),
        _double("relative_error", nullable=True),
        *_json("protocol"),
        _time("created_at"),
        refers={"candidate_id": "candidates", "environment_id": "environments"},
        optional={"failure_id": "failure_reasons"},
    )
    for table in ("predictions", "builds", "measurements"):
        _index(table, "candidate_id")


def _make_sessions() -> None:
    _make(
        "sessions",
        _text("context_key"),
        _text("model"),
        _text("effort"),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        *_json("options"),
        _text("options_key"),
        _text("state"),
        _text("owner"),
        _time("started_at"),
        _time("finished_at", nullable=True),
        _double("seconds"),
        _double("flops"),
        _double("min_bytes"),
        *_json("census", "counts", "messages"),
        refers={
            "template_id": "templates",
            "workload_id": "workloads",
            "target_id": "targets",
            "environment_id": "environments",
        },
    )
    _index("sessions", "context_key")
    _index("sessions", "workload_id")
    _make(
        "trials",
        _text("status"),
        _text("fingerprint"),
        _double("lowering_seconds"),
        _time("recorded_at"),
        sa.PrimaryKeyConstraint("session_id", "candidate_id", name="pk_trials"),
        refers={"session_id": "sessions", "candidate_id": "candidates"},
        optional={
            "prediction_id": "predictions",
            "build_id": "builds",
            "measurement_id": "measurements",
            "failure_id": "failure_reasons",
        },
        sqlite_with_rowid=False,
    )
    _index("trials", "candidate_id")
    _make(
        "baselines",
        sa.Column("position", sa.Integer(), nullable=False),
        _text("name"),
        *_json("samples_us"),
        _double("latency_us"),
        sa.PrimaryKeyConstraint("session_id", "position", name="pk_baselines"),
        refers={"session_id": "sessions"},
    )
