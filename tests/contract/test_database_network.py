"""Lost connections to a PostgreSQL server, and a lost server: a write has its effect once or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.support.postgres import PASSWORD, USER, Server
from tests.support.proxy import Cut, Proxy
from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.errors import DatabaseBusyError, DatabaseError, DatabaseReadOnlyError
from tilesight.problem.space import Census
from tilesight.records.session import Effort, SessionState
from tilesight.records.winners import Miss

pytestmark = pytest.mark.full

CENSUS = Census(1, 1, {})
CONTEXT = samples.context()
COMMIT = b"\x0bCOMMIT"  # with its length, since BEGIN names the level READ COMMITTED


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    with Proxy(postgres.socket) as made:
        yield made


@pytest.fixture
def far_url(proxy: Proxy, postgres: Server) -> Iterator[str]:
    """A database that is reached through `proxy`."""
    with postgres.database() as name:
        open_store(postgres.url(name)).close()
        yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/{name}?sslmode=disable"


@pytest.fixture
def far_store(far_url: str) -> Iterator[Store]:
    with open_store(far_url, busy_seconds=10) as opened:
        yield opened


def count_miss(store: Store) -> int:
    """Count one miss; returns the total count."""
    moment = datetime(2026, 1, 1)
    store.record_misses(
        [Miss(CONTEXT.workload, "h200", "", "t", 1, samples.config(1), "model", None, moment, moment)]
    )
    return store.misses()[0].count


MOMENTS = [("its begin", b"BEGIN"), ("its work", b"INSERT INTO dispatch_misses"), ("its commit", COMMIT)]


@pytest.mark.parametrize("how", list(Cut), ids=lambda how: how.name.lower())
@pytest.mark.parametrize("needle", [needle for _, needle in MOMENTS], ids=[name for name, _ in MOMENTS])
def test_misses_are_counted_once_wherever_the_connection_is_cut(
    far_store: Store, proxy: Proxy, needle: bytes, how: Cut
) -> None:
    proxy.cut_at(needle, how)
    assert count_miss(far_store) == 1
    assert proxy.cuts == 1
    assert count_miss(far_store) == 2


def test_misses_are_counted_once_if_ending_the_lost_session_fails_too(far_store: Store, proxy: Proxy) -> None:
    cut: set[bytes] = set()

    def rule(message: bytes) -> Cut | None:
        for needle in (COMMIT, b"pg_terminate_backend"):
            if needle in message and needle not in cut:
                cut.add(needle)
                return Cut.AFTER
        return None

    proxy.rule = rule
    assert count_miss(far_store) == 1
    assert proxy.cuts == 2


@pytest.mark.parametrize("how", list(Cut), ids=lambda how: how.name.lower())
def test_a_session_is_begun_and_taken_over_once_though_a_commit_is_lost(
    far_store: Store, proxy: Proxy, how: Cut
) -> None:
    proxy.cut_at(COMMIT, how)
    session_id = far_store.begin(CONTEXT, Effort.QUICK, 0, {}, CENSUS)
    assert query(far_store, "SELECT id FROM sessions")[1] == [(session_id,)]
    far_store.finish(session_id, SessionState.INTERRUPTED)
    proxy.cut_at(COMMIT, how)
    assert far_store.find_interrupted(CONTEXT, Effort.QUICK, {}) == session_id
    assert proxy.cuts == 2
    assert far_store.find_interrupted(CONTEXT, Effort.QUICK, {}) is None


@pytest.mark.parametrize("needle", [b"BEGIN", b"SELECT COUNT", b"COMMIT"])
def test_a_lost_reading_is_done_again(far_store: Store, proxy: Proxy, needle: bytes) -> None:
    proxy.cut_at(needle, Cut.BEFORE)
    assert (
        far_store.database.read(
            lambda connection: connection.execute(text("SELECT COUNT(*) FROM sessions")).scalar_one()
        )
        == 0
    )
    assert proxy.cuts == 1


def test_sessions_and_trials_come_through_a_bad_network(far_store: Store, proxy: Proxy) -> None:
    """Every seventeenth message is lost, or its answer."""
    context, passed = samples.context(), 0

    def rule(_message: bytes) -> Cut | None:
        nonlocal passed
        passed += 1
        return None if passed % 17 else (Cut.BEFORE, Cut.AFTER, Cut.UNSEEN)[passed // 17 % 3]

    proxy.rule = rule
    session_id = far_store.begin(context, Effort.QUICK, 0, {}, CENSUS)
    for number in range(12):
        far_store.record(session_id, context, samples.verified(number, 10.0 + number))
    proxy.rule = lambda _message: None
    assert proxy.cuts >= 3
    assert far_store.recall(context) == {
        samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(12)
    }
    assert overview(far_store).tables["sessions"] == 1


def test_a_session_that_the_server_ends_goes_on(postgres: Server, postgres_url: str) -> None:
    ended: list[int] = []

    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO templates (id, name, version) VALUES (1, 'a', 'b')"))
        if not ended:
            ended.append(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
            postgres.execute(f"SELECT pg_terminate_backend({ended[0]})")
        return int(connection.execute(text("SELECT COUNT(*) FROM templates")).scalar_one())

    with open_store(postgres_url, busy_seconds=10) as store:
        assert store.database.write(work) == 1
        assert len(query(store, "SELECT id FROM templates")[1]) == 1
    assert len(ended) == 1


@pytest.mark.parametrize("how", ["fast", "crash"])
def test_a_server_that_is_started_again_loses_nothing_and_nobody(
    postgres: Server, postgres_url: str, how: str
) -> None:
    context = samples.context()

    def restart() -> None:
        postgres.stop(how)
        time.sleep(0.3)
        postgres.start()

    with open_store(postgres_url, busy_seconds=20) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, CENSUS)
        store.record(session_id, context, samples.verified(0, 10.0))
        restarting = threading.Thread(target=restart)
        restarting.start()
        number = 0
        while restarting.is_alive() or number < 30:
            number += 1
            store.record(session_id, context, samples.verified(number, 10.0 + number))
        restarting.join()
        assert store.recall(context) == {
            samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(number + 1)
        }
        assert overview(store).tables["trials"] == number + 1


def test_a_server_that_stays_away_is_named_with_the_way_out(postgres: Server, postgres_url: str) -> None:
    context = samples.context()
    with open_store(postgres_url, busy_seconds=0.3) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, CENSUS)
        postgres.stop()
        try:
            for call in (
                lambda: store.record(session_id, context, samples.predicted(1)),
                lambda: store.recall(context),
            ):
                with pytest.raises(
                    DatabaseError, match=r"was lost and did not come back in 0\.3 s .*; start its server"
                ) as caught:
                    call()
                assert_named(caught.value, store)
            with pytest.raises(DatabaseError, match=r"cannot be reached .*check that the server runs"):
                open_store(postgres_url)
        finally:
            postgres.start()
        store.record(session_id, context, samples.predicted(1))  # and goes on with it
        assert len(store.recall(context)) == 1


def test_a_connection_cut_while_it_is_opened(far_url: str, proxy: Proxy) -> None:
    proxy.rule = lambda _message: Cut.BEFORE
    with pytest.raises(
        DatabaseError, match=r"127\.0\.0\.1:\d+/test\d+.* cannot be reached .*check that the server runs"
    ) as caught:
        open_store(far_url)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"password": "wrong-one"}, "password authentication failed"),
        ({"user": "stranger"}, "password authentication failed"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
    ],
)
def test_what_the_server_refuses_is_said_without_the_password(
    postgres: Server, changes: dict[str, Any], reason: str
) -> None:
    url = postgres.url(**{"database": "postgres", **changes})
    with pytest.raises(
        DatabaseError,
        match=rf"database 'postgresql://.*' cannot be reached .*{reason}.*user, password and database",
    ) as caught:
        open_store(url)
    for secret in (PASSWORD, "wrong-one"):
        assert secret not in str(caught.value)


def test_a_password_among_the_options_is_not_shown_either(postgres: Server) -> None:
    url = f"postgresql:///nowhere?host={postgres.folder}&user={USER}&password={PASSWORD}"
    with pytest.raises(DatabaseError, match=r"password=\*\*\*|password=%2A%2A%2A") as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


def test_a_lock_on_the_server_is_waited_for_and_then_named(
    postgres: Server, postgres_url: str, tables: str
) -> None:
    context = samples.context()
    with open_store(postgres_url, busy_seconds=0.3) as store, postgres.connect(tables) as other:
        session_id = store.begin(context, Effort.QUICK, 0, {}, CENSUS)
        with other.transaction():
            other.execute("LOCK TABLE trials IN EXCLUSIVE MODE")
            with pytest.raises(
                DatabaseBusyError, match=r"locked by another process \(waited 0\.3 s\); let it finish"
            ) as caught:
                store.record(session_id, context, samples.predicted(1))
            assert_named(caught.value, store)
            assert store.recall(context) == {}  # readers go on
        store.record(session_id, context, samples.predicted(1))


def test_two_writes_that_wait_for_each_other_are_both_done(postgres_url: str) -> None:
    """The server aborts one of them, and it is run again."""
    meeting, is_one_done = threading.Barrier(2, timeout=20), threading.Event()
    runs: list[int] = []

    def work(first: int, second: int, connection: Connection) -> None:
        runs.append(first)
        if len(runs) > 2:  # run again: it must not lock a row that the other one still waits for
            assert is_one_done.wait(timeout=20)
        add = text("INSERT INTO templates (id, name, version) VALUES (:id, 'a', 'b') ON CONFLICT DO NOTHING")
        connection.execute(add, {"id": first})
        if len(runs) <= 2:
            meeting.wait()
        connection.execute(add, {"id": second})

    with open_store(postgres_url, busy_seconds=20) as store:

        def write(first: int, second: int) -> None:
            store.database.write(lambda connection: work(first, second, connection))
            is_one_done.set()

        threads = [threading.Thread(target=write, args=pair) for pair in ((1, 2), (2, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(runs) == 3
        assert sorted(query(store, "SELECT id FROM templates")[1]) == [(1,), (2,)]


@pytest.mark.usefixtures("postgres_url")
def test_a_user_without_rights_is_told_how_to_get_them(postgres: Server, tables: str) -> None:
    postgres.execute("DROP ROLE IF EXISTS reader", f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
    postgres.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader", database=tables)
    url = postgres.url(tables, user="reader")
    try:
        with pytest.raises(DatabaseReadOnlyError, match=r"cannot be written \(permission denied .*GRANT"):
            open_store(url)
        with open_store(url, read_only=True) as store:
            assert store.recall(samples.context()) == {}
        with postgres.database() as name:
            postgres.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=name)
            with pytest.raises(DatabaseReadOnlyError, match=r"cannot be written \(permission denied .*GRANT"):
                open_store(postgres.url(name, user="reader"))
    finally:
        postgres.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM reader", database=tables)
        postgres.execute("DROP ROLE reader")


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Server) -> None:
    with (
        postgres.database(options="ENCODING 'LATIN1'") as name,
        pytest.raises(DatabaseError, match=r"has the encoding LATIN1, .*ENCODING 'UTF8'.*--db"),
    ):
        open_store(postgres.url(name))


def test_a_connection_whose_other_end_is_gone_is_given_up_soon(postgres_url: str) -> None:
    with open_store(postgres_url, busy_seconds=7) as store:
        driver: Any = store.database.read(lambda connection: connection.connection.driver_connection)
        assert int(driver.info.get_parameters()["tcp_user_timeout"]) <= 60_000
        assert query(store, "SELECT current_setting('lock_timeout')")[1] == [("7s",)]


def assert_named(error: DatabaseError, store: Store) -> None:
    assert store.name in str(error)
    assert "***" in store.name
    assert PASSWORD not in str(error)
