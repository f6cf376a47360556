"""Fixtures of the contract suites."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.executors import add_node, start_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray cluster of this machine: a head that the driver is on, and two nodes with kernel caches of their
    own. Tests that need it are skipped without Ray."""
    made = start_cluster()
    for name in ("first", "second"):
        add_node(made, tmp_path_factory.mktemp(name))
    yield made.address
    made.shutdown()
