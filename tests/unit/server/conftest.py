"""A served database with sessions of hostile texts, and dispatch tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from tests.support.page_sessions import HOSTILE, record, recorded_session
from tests.unit.pages import samples
from tilesight.dispatch.table.table_file import write_table
from tilesight.server.listener import Listener
from tilesight.server.site import Site
from tilesight.server.source import opened_source

HOSTILE_NAME = "<img src=x onerror=alert(1)>.json"


@dataclass
class Served:
    """A running server, its database and the ids of the sessions in it."""

    listener: Listener
    url: str
    sessions: tuple[int, ...] = ()

    def ask(
        self, path: str = "", method: str = "GET", *, host: str | None = None, token: str | None = None
    ) -> tuple[int, str, HTTPResponse]:
        """Status and text of the answer to a request of the page at `path` behind the token."""
        connection = HTTPConnection("127.0.0.1", self.listener.server_port, timeout=30)
        given = {} if host is None else {"Host": host}
        target = f"/{self.listener.token if token is None else token}/{path}"
        connection.request(method, target, headers=given)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves databases and paths until the end of the test."""
    with ExitStack() as stack:
        yield lambda url, *paths: served(stack, url, *paths)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A database with three sessions, one of hostile texts and one without times, and a folder of tables."""
    folder = tmp_path_factory.mktemp("served")
    url = f"sqlite:///{folder}/performance.db"
    sessions = [record(recorded_session(60, 12), url), record(recorded_session(40, 12, HOSTILE), url)]
    sessions.append(record(recorded_session(20, 0), url))
    plans = folder / "plans"
    plans.mkdir()
    write_table(replace(samples.table(), dtype="float16"), plans / "matmul.json")
    (plans / HOSTILE_NAME).write_text("{}", encoding="utf-8")
    with ExitStack() as stack:
        made = served(stack, url, plans)
        made.sessions = tuple(sessions)
        yield made


def served(stack: ExitStack, url: str, *paths: Path) -> Served:
    source = stack.enter_context(opened_source(url, paths))
    listener = stack.enter_context(Listener(Site(source)))
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(listener.shutdown)
    return Served(listener, url)
