"""Databases of strangers, whose tables hold anything: each page of the server, and `watch`, show what they
can, or say in one line what is wrong.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.page_sessions import record, recorded_session
from tests.unit.cli.test_db import DAMAGED
from tests.unit.server.conftest import Serve
from tilesight.api.watching import watch
from tilesight.cli.live_view import line, renderable
from tilesight.errors import TileSightError

PATHS = ("", "records", "kernels", "tables", "table/sessions", "table/best", "kernel/matmul")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_database_is_no_error_of_the_server(serve: Serve, tmp_path: Path, name: str) -> None:
    file = tmp_path / "performance.db"
    made = record(recorded_session(8, 4), f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(DAMAGED[name])
    served = serve(f"sqlite:///{file}")
    for path in (*PATHS, f"session/{made}", f"records?session={made}"):
        status, page, _ = served.ask(path)
        assert status in (200, 404, 503), (path, page[-600:])
    with suppress(TileSightError):
        for found in watch(made, database=str(file)):
            assert found is not None
            assert line(found)
            assert renderable(found).plain
