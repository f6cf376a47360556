"""The pages of the server: what they show, in which order, and what they say of what is not there."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode, urljoin
from urllib.request import urlopen

import pytest

from tests.support.page_sessions import record, recorded_session
from tests.unit.pages import samples
from tests.unit.server.conftest import HOSTILE_NAME, Serve, Served
from tilesight.database import open_store
from tilesight.database.engine import sqlite
from tilesight.database.lookups import browse as rows
from tilesight.dispatch.table.table_file import write_table
from tilesight.errors import DatabaseError, InputError
from tilesight.records.session import Effort
from tilesight.server import browse
from tilesight.server.source import ServedData, opened_source

LISTS = ("", "records", "kernels", "dispatch", "tables", "table/records", "table/trials", "table/best")


class Elements(HTMLParser):
    """The tags of a page, its links and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href" and tag == "a"]
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data


def fault(served: Served, path: str, status: int) -> str:
    """The line that says why a page is not shown."""
    found, page, _ = served.ask(path)
    assert found == status
    [line] = re.findall(r'<p class="warning">(.*?)</p>', page)
    return Elements(line).text


def test_the_first_page_has_the_latest_sessions_first(full: Served) -> None:
    _, page, _ = full.ask()
    places = [page.index(f'href="session/{number}"') for number in reversed(full.sessions)]
    assert places == sorted(places)
    assert "<dt>records</dt><dd>120</dd>" in page
    assert re.search(r'<td class="number predicted">~\d', page)  # nothing of it was measured
    assert re.search(r'<td class="number measured">\d', page)


def test_every_link_leads_to_a_page(full: Served) -> None:
    seen, waiting = set[str](), {""}
    while waiting:
        path = waiting.pop()
        status, page, _ = full.ask(path)
        assert status == 200, path
        seen.add(path)
        for link in Elements(page).links:
            if link.startswith("#") or "after=" in path:
                continue
            aim = urljoin(f"/x/{path}", link)
            assert aim.startswith("/x/"), f"{link} of {path} leaves the server's pages"
            if (aim := aim.removeprefix("/x/")) not in seen:
                waiting.add(aim)
    assert {
        "records",
        "tables",
        "dispatch",
        "kernels",
        "model",
        "dispatch/matmul.json",
        "kernel/matmul",
    } <= seen
    assert {f"session/{number}" for number in full.sessions} <= seen


@pytest.mark.parametrize("path", LISTS)
def test_hostile_texts_are_shown_as_text(full: Served, path: str) -> None:
    _, page, _ = full.ask(path)
    found = Elements(page)
    assert not {"img", "script", "iframe", "object"} & set(found.tags)
    if path in ("records", "table/records"):
        assert "<script>alert(" in found.text
    if path == "dispatch":
        assert HOSTILE_NAME in found.text


def test_reports_have_the_links_of_the_site(full: Served) -> None:
    for path in (f"session/{full.sessions[1]}", "dispatch/matmul.json", "kernel/matmul"):
        _, page, _ = full.ask(path)
        assert '<nav class="site" aria-label="Pages">' in page
        assert 'href="../records"' in page
        assert page.count("<script>") == 2  # those of every report
    assert "Squares are the fastest other implementation" in full.ask("dispatch/matmul.json")[1]


def test_sessions_can_be_chosen(full: Served) -> None:
    assert full.ask("?kernel=matmul&target=h200")[1].count('href="session/') == 3
    assert "No session is recorded here" in full.ask("?kernel=softmax")[1]
    key = recorded_session(8, 4).summary.context.workload.key
    assert full.ask("?" + urlencode({"workload": key}))[1].count('href="session/') == 3


def test_pages_follow_each_other_without_gaps(full: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browse, "ROWS", 2)
    _, first, _ = full.ask()
    assert first.count('href="session/') == 2
    [older] = re.findall(r'href="(\./\?before=\d+)">Older', first)
    _, second, _ = full.ask(older.removeprefix("./"))
    assert second.count('href="session/') == 1
    assert "Older sessions" not in second
    assert "The latest sessions" in second


def further(full: Served, path: str) -> Iterator[list[str]]:
    """The rows of a table, page by page."""
    while path:
        _, page, _ = full.ask(path)
        yield re.findall(r"<tr>(<td.*?)</tr>", page)
        found = re.search(r'href="([^"]*)">Further', page)
        path = urljoin(f"/x/{path}", unescape(found[1])).removeprefix("/x/") if found else ""


@pytest.mark.parametrize(
    ("path", "count"),
    [("records", 120), ("table/trials", 120), ("table/workload_dims", 3), ("table/best", 1)],
)
def test_every_row_is_on_one_page(
    full: Served, path: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "ROWS", 50 if count > 10 else 1)
    pages = list(further(full, path))
    found = [row for page in pages for row in page]
    assert len(found) == count
    if path != "records":  # which does not show every column
        assert len(set(found)) == count
    assert len(pages) == -(-count // (50 if count > 10 else 1))


def test_records_of_one_session(full: Served) -> None:
    number = full.sessions[2]
    _, page, _ = full.ask(f"records?session={number}")
    assert page.count("<tr><td") == 20
    assert f"Records of session {number}" in page


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("nothing", "There is no such page."),
        ("session/7/8", "There is no such page."),
        ("session/7", "session 7 is not in this database; `tilesight sessions` lists the sessions"),
        ("session/99999999999999999999", "session 99999999999999999999 is not in this database"),
        ("session/x", "'x' is no session: its id is a whole number"),
        ("session/%C2%B2", "'²' is no session"),
        ("records?session=-1", "session='-1' must be a whole number"),
        ("?before=1e3", "before='1e3' must be a whole number"),
        ("kernel/softmax", "nothing is recorded for kernel 'softmax'"),
        ("table/sqlite_master", "unknown view or table 'sqlite_master'"),
        ("table/trials;drop", "unknown view or table 'trials;drop'"),
        ("table/trials?after=[1]", "'[1]' is no place in 'trials'; begin with its first page"),
        ("table/trials?after=[1,true]", "is no place in 'trials'"),
        ("table/best?after=[-1]", "is no place in 'best'"),
        ("records?after=" + "[" * 900, "is no place in 'records'"),
        ("dispatch/..%2Fperformance.db", "there is no dispatch table '../performance.db' here"),
        ("dispatch/%3Cimg%20src=x%20onerror=alert(1)%3E.json", "dispatch table"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(full: Served, path: str, line: str) -> None:
    assert line in fault(full, path, 404)


def test_an_empty_database_says_so(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    open_store(url).close()
    served = serve(url)
    assert "No session is recorded here: `tilesight tune KERNEL` records one." in served.ask()[1]
    assert "No candidate is recorded here" in served.ask("records")[1]
    assert "No kernel has records here" in served.ask("kernels")[1]
    assert "No dispatch table was given" in served.ask("dispatch")[1]
    assert "misses has no rows." in served.ask("table/misses")[1]
    assert served.ask("tables")[0] == 200


def test_a_running_session_is_shown_as_it_stands(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/performance.db"
    found = recorded_session(20, 4)
    context = found.summary.context
    with open_store(url) as store:
        made = store.begin(context, Effort.QUICK, 0, {}, found.result.census)
        served = serve(url)
        assert "running" in served.ask()[1]
        store.record_many(made, context, found.result.trials)
        _, page, _ = served.ask(f"session/{made}")
        assert "The session is still running" in page
        assert '"length":20' in page


def test_tables_need_no_database(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    write_table(samples.table(), file)
    served = serve(f"sqlite:///{tmp_path}/none.db", file)
    assert "There is no database at" in served.ask()[1]
    assert served.ask("dispatch/table.json")[0] == 200
    assert fault(served, "records", 503).startswith("there is no database at")
    assert not (tmp_path / "none.db").exists()
    record(recorded_session(20, 0), f"sqlite:///{tmp_path}/none.db")
    assert "<dt>records</dt><dd>20</dd>" in served.ask()[1]
    assert served.ask("records")[0] == 200
    file.unlink()
    assert "cannot be read" in fault(served, "dispatch/table.json", 404)


def test_tables_of_one_name_have_their_paths(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_table(samples.table(), tmp_path / folder / "table.json")
    source = ServedData("none", lambda: None, [tmp_path / "a", tmp_path / "b" / "table.json"])
    assert list(source.tables()) == [str(tmp_path / "a" / "table.json"), str(tmp_path / "b" / "table.json")]


def test_what_cannot_be_served_is_refused_at_once(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t(x)")
    text = tmp_path / "text.json"
    text.write_text("[]", encoding="utf-8")
    for url, paths, kind, words in (
        (f"sqlite:///{tmp_path}/none.db", [], DatabaseError, "there is no database at"),
        (f"sqlite:///{other}", [], DatabaseError, "holds no TileSight tables"),
        (f"sqlite:///{other}", [text], InputError, "dispatch table"),
        (f"sqlite:///{other}", [tmp_path / "none.json"], InputError, "cannot be read"),
    ):
        with pytest.raises(kind, match=words) as refused, opened_source(url, paths):
            pass
        assert "\n" not in str(refused.value)


def test_a_database_that_vanishes_is_said_in_one_line(serve: Serve, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/performance.db"
    record(recorded_session(8, 4), url)
    served = serve(url)
    with open_store(url) as store:
        store.database.write(lambda connection: connection.exec_driver_sql("DROP VIEW leaderboard"))
    status, page, _ = served.ask("table/leaderboard")
    assert status in (500, 503)
    assert "leaderboard" in page


def test_a_view_that_takes_too_long_is_ended(full: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.within, "__defaults__", (0.0,))
    monkeypatch.setattr(sqlite, "STEPS", 1)  # the database of this test is small
    words = "view 'leaderboard' takes longer than 0 s in this database"
    assert words in fault(full, "table/leaderboard", 404)


def test_the_command_prints_an_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/performance.db"
    open_store(url).close()
    process = subprocess.Popen(
        [sys.executable, "-m", "tilesight.cli.main", "serve", "--db", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/", address)
        with urlopen(address, timeout=30) as answer:
            assert b"No session is recorded here" in answer.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "serve: ended"
