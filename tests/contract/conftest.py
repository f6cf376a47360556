"""Fixtures of the contract suites."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.executors import add_node, start_cluster
from tests.support.postgres import Server, missing
from tests.unit.database import samples
from tilesight.database import Store, open_store
from tilesight.database.schema import tables as schema

KINDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster on this machine: the head, and two nodes with kernel caches of their own.

    Tests that need it are skipped without Ray.
    """
    made = start_cluster()
    for name in ("first", "second"):
        add_node(made, tmp_path_factory.mktemp(name))
    yield made.address
    made.shutdown()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of this process's own. Tests that need it are skipped where none is installed;
    under CI they fail.
    """
    if reason := missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    server = Server()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def tables(postgres: Server) -> Iterator[str]:
    """The name of a database with tables, which tests share one after another: `postgres_url` empties it."""
    with postgres.database() as name:
        open_store(postgres.url(name)).close()
        yield name


@pytest.fixture
def postgres_url(postgres: Server, tables: str) -> str:
    """The URL of a database without records on the PostgreSQL server."""
    postgres.empty(tables, schema.metadata.sorted_tables)
    return postgres.url(tables)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without records, of each kind in turn."""
    if request.param == "sqlite":
        return samples.empty_database(tmp_path / "performance.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=KINDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that has no tables yet, of each kind in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new.db"
        return
    server = request.getfixturevalue("postgres")
    with server.database() as name:
        yield server.url(name)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url, busy_seconds=5) as opened:
        yield opened
