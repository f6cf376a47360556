"""What ships with TileSight: whom its sessions answer, which profiles it has, and damaged files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import update

from tests.unit.database import samples
from tests.unit.database.stocked import FAMILY, LARGE, add_session
from tilesight.database import layers, open_layers, open_store, query
from tilesight.database.schema import tables as schema
from tilesight.database.schema.views import VIEWS
from tilesight.database.shipped import PROFILES, SESSIONS, ProfileArchive, shipped_file, write_archive
from tilesight.errors import DatabaseCorruptError, FailureKind
from tilesight.profile.parametric import ParametricProfile, ProfileKey, ProfileSample
from tilesight.records.session import Decision, Effort, SessionState
from tilesight.settings import load_settings

QUICK = (Effort.QUICK, Effort.FULL)
OTHER = {"tilelang": "0.1.15", "nvcc": "12.9", "driver": "570"}  # software of a user


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package's own, whose files ship."""
    folder = tmp_path / "package"
    folder.mkdir()
    monkeypatch.setattr(
        layers, "shipped_file", lambda name: folder / name if (folder / name).exists() else None
    )
    monkeypatch.setenv("TILESIGHT_SHIPPED", "1")
    return folder


def profile(number: int, structure: str = "s") -> ParametricProfile:
    return ParametricProfile(
        samples.config(number), structure, (ProfileSample({"m": 1}, "f", [{"grid": [1]}]),)
    )


def measured(path: Path, **changes: object) -> Path:
    with open_store(str(path)) as store:
        add_session(
            store,
            samples.context(**changes),
            samples.verified(1, 12.5),
            samples.predicted(2),
            samples.failed(3, FailureKind.RUN_ERROR),
            decision=Decision(samples.config(1)),
        )
    return path


def test_a_session_answers_under_other_software(package: Path, tmp_path: Path) -> None:
    measured(package / "shipped.db")
    with open_layers(str(tmp_path / "own.db"), []) as store:
        here = samples.context(software=OTHER, model="other", space="other", target_fingerprint="other")
        assert store.find_complete(here, Effort.QUICK, {}) is None
        found = store.shipped_session(here, QUICK)
        assert found is not None
        assert found.result.best is not None
        assert found.result.best.measured_us == 12.5
        # dispatch builds the winner with the compiler that is here
        winner = samples.winner(store, here)
        assert winner is not None
        assert (winner.latency_us, winner.layer) == (12.5, str(package / "shipped.db"))


@pytest.mark.parametrize(
    "change",
    [
        {"device": "NVIDIA H100"},
        {"template_version": "ba9876543210"},
        {"workload": LARGE},
        {"protocol": "warm"},
        {"dynamic": ("m",)},
        {"target": "h100"},
    ],
)
def test_another_kernel_or_card_is_no_answer(
    package: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    measured(package / "shipped.db")
    with open_layers(str(tmp_path / "own.db"), []) as store:
        assert store.shipped_session(samples.context(**change), QUICK) is None


def test_what_is_wrong_here_is_no_answer(package: Path, tmp_path: Path) -> None:
    measured(package / "shipped.db")
    with open_layers(str(tmp_path / "own.db"), []) as store:
        add_session(store, samples.context(software=OTHER), samples.failed(1, FailureKind.WRONG_RESULT))
        assert store.shipped_session(samples.context(software=OTHER), QUICK) is None


def test_the_users_own_session_comes_first(package: Path, tmp_path: Path) -> None:
    """Also one that was interrupted, which goes on, or one of other software, whose parts are recalled."""
    measured(package / "shipped.db")
    for number, (changes, state) in enumerate(
        [({}, SessionState.INTERRUPTED), ({"software": OTHER}, SessionState.COMPLETE)]
    ):
        with open_layers(str(tmp_path / f"own{number}.db"), []) as store:
            assert store.shipped_session(samples.context(), QUICK) is not None
            add_session(store, samples.context(**changes), samples.predicted(1), state=state)
            assert store.shipped_session(samples.context(), QUICK) is None


def test_a_lesser_effort_is_no_answer(package: Path, tmp_path: Path) -> None:
    measured(package / "shipped.db")
    with open_layers(str(tmp_path / "own.db"), []) as store:
        assert store.shipped_session(samples.context(), (Effort.FULL,)) is None


def test_nothing_of_it_is_taken_for_the_users_own(package: Path, tmp_path: Path) -> None:
    """Its libraries are not here, its times are not of this machine."""
    measured(package / "shipped.db")
    with open_layers(str(tmp_path / "own.db"), []) as store:
        assert store.recall(samples.context()) == {}
        assert store.best() == []
        assert store.recorded_winners(samples.context(software=OTHER), {}) == []
        assert [winner.config for winner in store.recorded_winners(samples.context(), {})] == [
            samples.config(1)
        ]


def test_nothing_is_used_where_the_user_says_so(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(package / "shipped.db")
    write_archive(package / "profiles.zip", {FAMILY: [profile(1)]})
    monkeypatch.setenv("TILESIGHT_SHIPPED", "0")
    assert not load_settings().shipped
    with open_layers(str(tmp_path / "own.db"), []) as store:
        assert store.layers == ()
        assert store.shipped_session(samples.context(), QUICK) is None
        assert store.cached_profiles(FAMILY) == []
    with open_layers(str(tmp_path / "own.db"), [], shipped=True) as store:
        assert store.cached_profiles(FAMILY) != []


def test_profiles_of_an_archive_lie_below_the_own_ones(package: Path, tmp_path: Path) -> None:
    other = replace(FAMILY, reader="reader-2")
    write_archive(
        package / "profiles.zip", {FAMILY: [profile(1, "shipped"), profile(2, "shipped")], other: []}
    )
    with open_layers(str(tmp_path / "own.db"), []) as store:
        store.cache_profiles(FAMILY, [profile(1, "own")])
        found = {one.config["block_m"]: one.structure for one in store.cached_profiles(FAMILY)}
        assert found == {1: "own", 2: "shipped"}
        assert store.cached_profiles(other) == []
        assert store.cached_profiles(replace(FAMILY, arch="sm_80")) == []


def test_equal_profiles_make_an_equal_file(tmp_path: Path) -> None:
    for name, order in (("a", (1, 2)), ("b", (2, 1))):
        write_archive(tmp_path / name, {FAMILY: [profile(number) for number in order]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def other_bytes(content: bytes) -> bytes:
    """A member that no longer unpacks; the list of members is whole."""
    return content[:60] + bytes(20) + content[80:]


@pytest.mark.parametrize("damage", [cut, other_bytes])
def test_damaged_archives(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "profiles.zip"
    write_archive(path, {FAMILY: [profile(number) for number in range(1, 20)]})
    path.write_bytes(damage(path.read_bytes()))
    if damage is cut:
        with pytest.raises(DatabaseCorruptError, match=r"profiles.zip' has no profiles .*--force-reinstall"):
            ProfileArchive(path)
    else:
        assert ProfileArchive(path).cached_profiles(FAMILY) == []  # lowered anew


def test_the_files_are_made_from_sessions(
    build: ModuleType, package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured candidates of complete sessions, the latest one of each workload, without paths."""
    early, late = measured(tmp_path / "early.db"), measured(tmp_path / "late.db")
    began = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=3)
    with open_store(str(early)) as store:
        column = schema.sessions.c.started_at
        store.database.write(lambda c: c.execute(update(schema.sessions).values({column.name: began})))
        add_session(
            store,
            samples.context(workload=LARGE),
            samples.verified(7, 3.0),
            state=SessionState.INTERRUPTED,
        )
    with open_store(str(late)) as store:
        store.cache_profiles(FAMILY, [profile(1)])
    build.pack([early], package)
    with open_layers(str(tmp_path / "own.db"), []) as store:
        found = store.shipped_session(samples.context(), QUICK)
        assert found is not None
        assert abs(found.summary.started_at.replace(tzinfo=None) - began) < timedelta(seconds=1)
        assert store.shipped_session(samples.context(workload=LARGE), QUICK) is None
    build.pack([late], package)  # and what ships already
    with open_layers(str(tmp_path / "own.db"), []) as store:
        found = store.shipped_session(samples.context(), QUICK)
        assert found is not None
        assert found.summary.started_at.replace(tzinfo=None) > began
        assert [trial.config for trial in found.result.trials] == [samples.config(1)]
        assert found.result.decision == Decision(samples.config(1))
        assert [one.config for one in store.cached_profiles(FAMILY)] == [samples.config(1)]
    build.check(package)
    out = capsys.readouterr().out
    assert out.endswith("0 of 1 sessions\n0 of 1 profiles\n0 of 0 plans\n")  # of a made-up template
    with open_store(str(package / "shipped.db"), read_only=True) as shipped:
        assert query(shipped, "SELECT artifact FROM builds")[1] == [("(not shipped)",)]
        assert query(shipped, "SELECT COUNT(*) FROM sessions")[1] == [(1,)]


def test_the_sessions_of_the_package_are_whole() -> None:
    sessions, profiles = shipped_file(SESSIONS), shipped_file(PROFILES)
    assert sessions is not None
    assert profiles is not None
    assert sum(file.stat().st_size for file in (sessions, profiles)) < 15e6
    with open_store(str(sessions), read_only=True) as store:
        summaries = store.session_summaries()
        assert {summary.state for summary in summaries} == {SessionState.COMPLETE}
        assert all(summary.is_measured for summary in summaries)
        _, rows = query(store, "SELECT DISTINCT artifact FROM builds WHERE artifact IS NOT NULL")
        assert rows == [("(not shipped)",)]
        assert query(store, "SELECT COUNT(*) FROM parametric_profiles")[1] == [(0,)]
    assert not sessions.with_name(f"{sessions.name}-wal").exists(), "a reader must not write beside it"


def test_all_that_ships_is_of_the_present_code(build: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Sessions, profiles and plans of other versions answer nobody.

    Where a template does for recorded workloads what it did, `same_code.json` says so. After a change of the
    reader `refresh_profiles.py` is run.
    """
    build.check(build.PACKAGE)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        usable, _, total, *_ = line.split()
        assert usable == total != "0", line


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.full), 16])
def test_the_profiles_of_the_package_can_be_read(every: int) -> None:
    profiles = shipped_file(PROFILES)
    assert profiles is not None
    archive = ProfileArchive(profiles)
    for digest, fields in list(archive.keys.items())[::every]:
        parts = ("template", "template_version", "arch", "shape_class", "reader")
        key = ProfileKey(*(str(fields[part]) for part in parts))
        assert key.digest == digest
        assert len(archive.cached_profiles(key)) == fields["profiles"]


def test_the_database_that_ships_has_this_schema() -> None:
    """Otherwise each user's first command makes a migrated copy of it."""
    file = resources.files("tilesight.database") / SESSIONS
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        assert connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchall() == [
            (schema.HEAD,)
        ]
        made = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'"))
    assert made == {name: f"CREATE VIEW {name} AS {sql}" for name, sql in VIEWS.items()}
