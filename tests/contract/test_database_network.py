"""What is promised where the way to a PostgreSQL server is lost, or the server itself: a write is done once or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.contract.proxy import Cut, Proxy
from tests.postgres import PASSWORD, USER, Server
from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.errors import DatabaseBusyError, DatabaseError, DatabaseReadOnlyError
from tilesight.session import Effort
from tilesight.space import Census

CENSUS = Census(1, 1, {})
COMMIT = b"\x0bCOMMIT"  # with its length, since BEGIN names the level READ COMMITTED


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    with Proxy(postgres.socket) as made:
        yield made


@pytest.fixture
def far_url(proxy: Proxy, postgres: Server) -> Iterator[str]:
    """A database that is reached through `proxy`, with a counter in it: `write_once` cannot be done twice unseen."""
    with postgres.database() as name:
        open_store(postgres.url(name)).close()
        postgres.execute("CREATE TABLE counter (n integer)", "INSERT INTO counter VALUES (0)", database=name)
        yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{proxy.port}/{name}?sslmode=disable"


@pytest.fixture
def far_store(far_url: str) -> Iterator[Store]:
    with open_store(far_url, busy_seconds=10) as opened:
        yield opened


def count_up(connection: Connection) -> int:
    return int(connection.execute(text("UPDATE counter SET n = n + 1 RETURNING n")).scalar_one())


def counted(store: Store) -> int:
    return int(query(store, "SELECT n FROM counter")[1][0][0])


MOMENTS = [
    ("its begin", b"BEGIN"),
    ("its first statement", b"pg_current_xact_id"),
    ("its work", b"UPDATE counter"),
    ("its commit", COMMIT),
]


@pytest.mark.parametrize("how", list(Cut), ids=lambda how: how.name.lower())
@pytest.mark.parametrize("needle", [needle for _, needle in MOMENTS], ids=[name for name, _ in MOMENTS])
def test_a_write_is_done_once_wherever_its_connection_is_cut(far_store: Store, proxy: Proxy, needle: bytes, how: Cut) -> None:
    proxy.cut_at(needle, how)
    assert far_store.database.write(count_up) == 1
    assert proxy.cuts == 1
    assert counted(far_store) == 1
    assert far_store.database.write(count_up) == 2


def test_a_write_is_done_once_though_asking_about_it_fails_too(far_store: Store, proxy: Proxy) -> None:
    cut: set[bytes] = set()

    def rule(message: bytes) -> Cut | None:
        for needle in (COMMIT, b"pg_xact_status"):
            if needle in message and needle not in cut:
                cut.add(needle)
                return Cut.AFTER
        return None

    proxy.rule = rule
    assert far_store.database.write(count_up) == 1
    assert (proxy.cuts, counted(far_store)) == (2, 1)


@pytest.mark.parametrize("needle", [b"BEGIN", b"SELECT n", b"COMMIT"])
def test_a_lost_reading_is_done_again(far_store: Store, proxy: Proxy, needle: bytes) -> None:
    proxy.cut_at(needle, Cut.BEFORE)
    assert far_store.database.read(lambda connection: connection.execute(text("SELECT n FROM counter")).scalar_one()) == 0
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
    assert far_store.recall(context) == {samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(12)}
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
def test_a_server_that_is_started_again_loses_nothing_and_nobody(postgres: Server, postgres_url: str, how: str) -> None:
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
        assert store.recall(context) == {samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(number + 1)}
        assert overview(store).tables["trials"] == number + 1


@pytest.mark.parametrize(("how", "state"), [("fast", "aborted"), ("crash", "committed")])
def test_a_number_that_a_crashed_server_gives_again_is_not_taken_for_the_write_that_was_lost(
    postgres: Server, postgres_url: str, how: str, state: str
) -> None:
    """Numbers of transactions that left no trace before the crash are given again, and what is said of them is another's."""
    marks: list[tuple[str, str]] = []
    with open_store(postgres_url, busy_seconds=10) as store:
        backend = store.database.backend

        def lose(connection: Connection) -> None:
            if not marks:
                marks.append(backend.mark(connection))
                postgres.stop(how)
                postgres.start()
            connection.execute(text("SELECT 1"))

        store.database.write(lose)
        while int(store.database.write(backend.mark)[0]) <= int(marks[0][0]):
            pass  # until the number was given again
        assert store.database.read(lambda connection: backend.was_committed(connection, marks[0])) is False
        with postgres.connect() as connection:
            said = connection.execute(f"SELECT pg_xact_status(CAST('{marks[0][0]}' AS xid8))").fetchall()
        assert said == [(state,)]


def test_a_server_that_stays_away_is_named_with_the_way_out(postgres: Server, postgres_url: str) -> None:
    context = samples.context()
    with open_store(postgres_url, busy_seconds=0.3) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, CENSUS)
        postgres.stop()
        try:
            for call in (lambda: store.record(session_id, context, samples.predicted(1)), lambda: store.recall(context)):
                with pytest.raises(DatabaseError, match=r"was lost and did not come back in 0\.3 s .*; start its server") as caught:
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
    with pytest.raises(DatabaseError, match=r"127\.0\.0\.1:\d+/test\d+.* cannot be reached .*check that the server runs") as caught:
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
def test_what_the_server_refuses_is_said_without_the_password(postgres: Server, changes: dict[str, Any], reason: str) -> None:
    url = postgres.url(**{"database": "postgres", **changes})
    with pytest.raises(
        DatabaseError, match=rf"database 'postgresql://.*' cannot be reached .*{reason}.*user, password and database"
    ) as caught:
        open_store(url)
    for secret in (PASSWORD, "wrong-one"):
        assert secret not in str(caught.value)


def test_a_password_among_the_options_is_not_shown_either(postgres: Server) -> None:
    url = f"postgresql:///nowhere?host={postgres.folder}&user={USER}&password={PASSWORD}"
    with pytest.raises(DatabaseError, match=r"password=\*\*\*|password=%2A%2A%2A") as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


def test_a_lock_on_the_server_is_waited_for_and_then_named(postgres: Server, postgres_url: str, tables: str) -> None:
    context = samples.context()
    with open_store(postgres_url, busy_seconds=0.3) as store, postgres.connect(tables) as other:
        session_id = store.begin(context, Effort.QUICK, 0, {}, CENSUS)
        with other.transaction():
            other.execute("LOCK TABLE trials IN EXCLUSIVE MODE")
            with pytest.raises(DatabaseBusyError, match=r"locked by another process \(waited 0\.3 s\); let it finish") as caught:
                store.record(session_id, context, samples.predicted(1))
            assert_named(caught.value, store)
            assert store.recall(context) == {}  # readers go on
        store.record(session_id, context, samples.predicted(1))


def test_two_writes_that_wait_for_each_other_are_both_done(postgres_url: str) -> None:
    """The server ends one of them, and it is done again."""
    meeting = threading.Barrier(2, timeout=20)
    runs: list[int] = []

    def work(first: int, second: int, connection: Connection) -> None:
        runs.append(first)
        add = text("INSERT INTO templates (id, name, version) VALUES (:id, 'a', 'b') ON CONFLICT DO NOTHING")
        connection.execute(add, {"id": first})
        if len(runs) <= 2:
            meeting.wait()
        connection.execute(add, {"id": second})

    with open_store(postgres_url, busy_seconds=20) as store:
        pairs = ((1, 2), (2, 1))
        threads = [threading.Thread(target=store.database.write, args=(lambda c, pair=pair: work(*pair, c),)) for pair in pairs]
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
        assert query(store, "SHOW lock_timeout")[1] == [("7s",)]


def assert_named(error: DatabaseError, store: Store) -> None:
    assert store.name in str(error)
    assert "***" in store.name
    assert PASSWORD not in str(error)
