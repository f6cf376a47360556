"""Export to JSON lines and import: nothing is lost, and foreign files can do no harm."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import add_session, stock, stocked
from tilesight.database import Store, open_store, overview, query
from tilesight.database.exchange import untrusted
from tilesight.database.exchange.json_lines import export_everything, import_everything
from tilesight.database.exchange.merge import Merger
from tilesight.database.exchange.soundness import Soundness
from tilesight.database.exchange.untrusted import NO_LIBRARY
from tilesight.database.maintenance.check import check
from tilesight.database.tables.strict_json import MAX_DEPTH, MAX_TEXT
from tilesight.errors import FailureKind, InputError
from tilesight.records.session import Effort
from tilesight.records.trial import Status

Line = dict[str, Any]
Change = Callable[[list[Line]], None]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of an export."""
    folder = tmp_path_factory.mktemp("export")
    with open_store(stocked(folder / "x.db")) as store:
        export_everything(store, folder / "x.jsonl")
    return (folder / "x.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "here.db")) as opened:
        yield opened


def written(tmp_path: Path, lines: list[str]) -> Path:
    file = tmp_path / "file.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def changed(tmp_path: Path, lines: list[str], change: Change) -> Path:
    """The file after `change` of its lines as JSON."""
    found = [json.loads(line) for line in lines]
    change(found)
    return written(tmp_path, [json.dumps(line) for line in found])


def row(lines: list[Line], table: str) -> Line:
    return next(line["row"] for line in lines if line.get("table") == table)


# ---- lossless


@pytest.mark.parametrize("seed", range(4))
def test_what_is_imported_with_trust_is_what_was_exported(tmp_path: Path, seed: int) -> None:
    with (
        open_store(stocked(tmp_path / "a.db", seed)) as first,
        open_store(samples.empty_database(tmp_path / "b.db")) as second,
    ):
        exported = export_everything(first, tmp_path / "a.jsonl")
        found = import_everything(second, tmp_path / "a.jsonl", trusted=True)
        assert {name: count for name, count in found.written.items() if count} == {
            n: c for n, c in exported.items() if c
        }
        assert (found.origin, found.skipped) == ("", {})
        export_everything(second, tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
        context = samples.context()
        assert second.recall(context) == first.recall(context)
        assert second.find_complete(context, Effort.QUICK, {}) == first.find_complete(
            context, Effort.QUICK, {}
        )
        assert check(second).faults == ()
        # again, and into the first database: nothing is new
        assert not sum(import_everything(second, tmp_path / "a.jsonl", trusted=True).written.values())
        assert not sum(import_everything(first, tmp_path / "a.jsonl", trusted=True).written.values())


def test_export_replaces_a_file_only_when_it_is_whole(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("of before")
    store.close()
    with open_store(f"sqlite:///{tmp_path}/here.db") as other:
        other.database.write(lambda connection: connection.exec_driver_sql("DROP TABLE baselines"))
        with pytest.raises(Exception, match="baselines"):
            export_everything(other, file)
    assert file.read_text() == "of before"
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.suffix.startswith(".p")) == []


@pytest.mark.parametrize("name", ["x.csv", "x", "x.json"])
def test_everything_is_json_lines(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(
        InputError, match=r"written as JSON lines; name a file that ends in \.jsonl or \.ndjson"
    ):
        export_everything(store, tmp_path / name)


# ---- marked


def test_a_strangers_facts_never_pass_for_own_ones(tmp_path: Path, store: Store, lines: list[str]) -> None:
    context = samples.context()
    found = import_everything(store, written(tmp_path, lines), origin="lab 3")
    assert found.origin == "lab 3"
    assert set(found.skipped) == {"parametric_profiles", "dispatch_misses", "calibrations"}
    assert store.recall(context) == {}
    assert store.find_complete(context, Effort.QUICK, {}) is None
    assert store.find_interrupted(context, Effort.QUICK, {}) is None
    assert samples.winner(store, context) is None
    assert store.winners(context, {}) == []
    shown = query(store, "SELECT DISTINCT target, device, software FROM leaderboard")[1]
    assert {(target, device, json.loads(software)["imported"]) for target, device, software in shown} == {
        ("h200 (imported)", "NVIDIA H200 (imported)", "lab 3")
    }
    # no path of the file is ever opened
    assert query(store, "SELECT DISTINCT artifact FROM builds WHERE artifact IS NOT NULL")[1] == [
        (NO_LIBRARY,)
    ]
    assert not Path(NO_LIBRARY).exists()
    assert check(store).faults == ()


def test_a_forged_time_does_not_hide_the_own_best(tmp_path: Path, store: Store) -> None:
    with open_store(samples.empty_database(tmp_path / "theirs.db")) as theirs:
        add_session(
            theirs, samples.context(), samples.verified(2, 0.001), samples.failed(1, FailureKind.WRONG_RESULT)
        )
        export_everything(theirs, tmp_path / "x.jsonl")
    add_session(store, samples.context(), samples.verified(1, 10.0))
    import_everything(store, tmp_path / "x.jsonl")
    assert {row.target: row.latency_us for row in store.best()} == {"h200": 10.0, "h200 (imported)": 0.001}
    assert [record.status for record in store.recall(samples.context()).values()] == [Status.VERIFIED]


def test_importing_again_changes_nothing_and_another_origin_is_another_session(
    tmp_path: Path, store: Store, lines: list[str]
) -> None:
    file = written(tmp_path, lines)
    import_everything(store, file)
    before = overview(store).tables
    assert not sum(import_everything(store, file).written.values())
    assert overview(store).tables == before
    import_everything(store, file, origin="another")
    assert overview(store).tables["sessions"] == 2 * before["sessions"]
    assert overview(store).tables["candidates"] == before["candidates"]  # the candidates are the same


def test_an_own_session_stays_beside_its_imported_copy(tmp_path: Path) -> None:
    with open_store(samples.empty_database(tmp_path / "x.db")) as store:
        session_id = stock(store)
        answer = store.find_complete(samples.context(), Effort.QUICK, {})
        export_everything(store, tmp_path / "x.jsonl")
        import_everything(store, tmp_path / "x.jsonl")
        assert store.find_complete(samples.context(), Effort.QUICK, {}) == answer
        assert query(store, f"SELECT owner <> '' FROM sessions WHERE id = {session_id}")[1] == [(1,)]


@pytest.mark.parametrize("origin", ["  ", "x" * 101, "two\nlines", "\x1b[2J"])
def test_an_origin_is_a_short_text(store: Store, tmp_path: Path, lines: list[str], origin: str) -> None:
    with pytest.raises(InputError, match=r"origin .* must be a printable text"):
        import_everything(store, written(tmp_path, lines), origin=origin)


# ---- refused

SPOILED: dict[str, tuple[Change, str]] = {
    "another format": (lambda found: found[0].update(format="x"), "this is not an export of everything"),
    "a newer schema": (lambda found: found[0].update(schema="0099"), r"schema '0099'.*upgrade"),
    "another version": (lambda found: found[0].update(version=2), r"version '2'.*upgrade"),
    "cut short": (lambda found: found.pop(), "without its last line: it was cut short"),
    "lines missing": (lambda found: found.pop(-2), "the last line states"),
    "something after the end": (lambda found: found.append(found[1]), "nothing may follow the last line"),
    "unknown table": (
        lambda found: found[1].update(table="users"),
        r"unknown table 'users'; known: .*software",
    ),
    "table that is no text": (lambda found: found[1].update(table=["software"]), "unknown table"),
    "line with more": (lambda found: found[1].update(code="x"), 'must be {"table"'),
    "row that is none": (lambda found: found[1].update(row=[1]), 'must be {"table"'),
    "unknown field": (
        lambda found: row(found, "software").update(shell="rm"),
        r"software: unknown field 'shell'; known: id, versions",
    ),
    "missing field": (lambda found: row(found, "software").pop("versions"), "software.versions is missing"),
    "null": (lambda found: row(found, "templates").update(name=None), "templates.name must not be null"),
    "number for text": (
        lambda found: row(found, "templates").update(name=7),
        "templates.name=7 must be a text",
    ),
    "text for number": (
        lambda found: row(found, "builds").update(seconds="1"),
        "builds.seconds='1' must be a finite number",
    ),
    "boolean for number": (
        lambda found: row(found, "builds").update(seconds=True),
        "builds.seconds=True must be a finite number",
    ),
    "boolean for id": (
        lambda found: row(found, "software").update(id=True),
        "software.id=True must be a whole number",
    ),
    "negative id": (
        lambda found: row(found, "software").update(id=-1),
        "software.id=-1 must be a whole number in 0",
    ),
    "huge id": (
        lambda found: row(found, "software").update(id=2**63),
        "software.id=9223372036854775808 must be a whole number",
    ),
    "huge seed": (
        lambda found: row(found, "sessions").update(seed=2**63),
        "sessions.seed=.* must be a whole number",
    ),
    "negative time": (
        lambda found: row(found, "predictions").update(latency_us=-1.0),
        "predictions.latency_us=-1.0 must be .* above 0",
    ),
    "negative seconds": (
        lambda found: row(found, "sessions").update(seconds=-1),
        "sessions.seconds=-1 must be .* of at least 0",
    ),
    "no time of day": (
        lambda found: row(found, "trials").update(recorded_at="now"),
        "trials.recorded_at='now' must be a time in UTC",
    ),
    "a time with a zone": (
        lambda found: row(found, "trials").update(recorded_at="2026-01-01T00:00:00+01:00"),
        "trials.recorded_at=.* without a zone",
    ),
    "a time long ago": (
        lambda found: row(found, "trials").update(recorded_at="0000-01-01T00:00:00"),
        "trials.recorded_at=.* must be a time",
    ),
    "unknown status": (
        lambda found: row(found, "trials").update(status="splendid"),
        "trials.status='splendid' must be one of: predicted",
    ),
    "unknown kind": (
        lambda found: row(found, "failure_reasons").update(kind="x"),
        "failure_reasons.kind='x' must be one of",
    ),
    "unknown effort": (
        lambda found: row(found, "sessions").update(effort="x"),
        "sessions.effort='x' must be one of",
    ),
    "unknown state": (
        lambda found: row(found, "sessions").update(state="x"),
        "sessions.state='x' must be one of",
    ),
    "versions that are none": (
        lambda found: row(found, "software").update(versions={"nvcc": 13}),
        "software.versions=.* an object of texts",
    ),
    "dimension of 0": (
        lambda found: row(found, "workloads").update(dims={"m": 0}),
        r"workloads.dims=.* in 1 \.\.",
    ),
    "dimension as text": (
        lambda found: row(found, "workloads").update(dims={"m": "4"}),
        "workloads.dims=.* whole numbers",
    ),
    "another dimension": (
        lambda found: row(found, "workloads").update(dims={"m": 4}),
        "workloads.key=.* is not that of its dimensions",
    ),
    "a dimension that is not its workload's": (
        lambda found: row(found, "workload_dims").update(size=5),
        "workload_dims: .*=5 is not that of its workload",
    ),
    "samples as text": (
        lambda found: row(found, "measurements").update(samples_us=["1"]),
        "measurements.samples_us=.* numbers above 0",
    ),
    "sample of 0": (
        lambda found: row(found, "measurements").update(samples_us=[0.0]),
        "measurements.samples_us=.* numbers above 0",
    ),
    "decision that is none": (
        lambda found: row(found, "sessions").update(decision={"winner": 1}),
        "sessions.decision=.* winner, tied",
    ),
    "body that is no base64": (
        lambda found: row(found, "parametric_profiles").update(body="?"),
        "parametric_profiles.body=.* must be base64",
    ),
    "body that is no profile": (
        lambda found: row(found, "parametric_profiles").update(body="eJwDAAAAAAE="),
        "parametric_profiles.body is no parametric profile",
    ),
    "profile whose config is a text": (
        lambda found: row(found, "parametric_profiles").update(body=_body(config="x")),
        "parametric_profiles.body is no parametric profile",
    ),
    "profile with a number beyond all numbers": (
        lambda found: row(found, "parametric_profiles").update(
            body=_body(rules=[[["grid"], ["rule", [], 10**400, 0]]])
        ),
        "parametric_profiles.body is no parametric profile",
    ),
    "profile of another key": (
        lambda found: row(found, "parametric_profiles").update(reader="r2"),
        "profile_key=.* does not follow",
    ),
    # forged rows: a changed fact needs another id, and so do all references to it
    "a faster time": (
        lambda found: row(found, "measurements").update(samples_us=[0.1], sample_count=1, latency_us=0.1),
        "measurements.id=.* is not the id of this content",
    ),
    "another path": (
        lambda found: row(found, "builds").update(artifact="/tmp/evil.so", failure_id=None),
        "builds.id=.* the row was changed",
    ),
    "another version of software": (
        lambda found: row(found, "software")["versions"].update(nvcc="1"),
        "software.id=.* the row was changed",
    ),
    "another software key": (
        lambda found: row(found, "software").update(code_key="0" * 16),
        "software.code_key=.* does not follow",
    ),
    "another place for dispatch": (
        lambda found: row(found, "sessions").update(shape_family=7),
        "sessions.shape_family=7 does not follow",
    ),
    "other options": (
        lambda found: row(found, "sessions").update(options={"a": 1}),
        "sessions.options_key=.* does not follow",
    ),
    "reference to nothing": (
        lambda found: row(found, "trials").update(candidate_id=12),
        "trials.candidate_id=12 refers to no row of candidates",
    ),
    "a row twice": (lambda found: found.insert(2, found[1]), "given twice"),
    "a trial of another status": (
        lambda found: _verified(found).update(status="failed"),
        "trials.status=failed: a trial of status 'failed' lacks",
    ),
    "a trial of another's measurement": (
        lambda found: _verified(found).update(measurement_id=_other(found)),
        "is of another candidate",
    ),
    "a vendor's time that is none": (
        lambda found: row(found, "baselines").update(latency_us=0.5),
        "baselines.latency_us=0.5 must be the median",
    ),
    "a config that is none": (
        lambda found: row(found, "dispatch_misses").update(config="[1]"),
        "dispatch_misses.config=.* must be a config",
    ),
    "a config that is not canonical": (
        lambda found: row(found, "dispatch_misses").update(config='{"b": 1}'),
        "must be a config as",
    ),
    "a negative count": (
        lambda found: row(found, "dispatch_misses").update(count=-(2**63) - 1),
        "dispatch_misses.count=.* whole number",
    ),
    "a winner of another workload": (
        lambda found: _winner_of_another(found),
        "sessions.winner_id=.* another template or workload",
    ),
    "a winner of other dynamic dimensions": (
        lambda found: _winner_of_static(found),
        "sessions.winner_id=.* other dynamic dimensions",
    ),
}


def _body(**changes: Any) -> str:
    """The body of a profile that is spoiled by `changes`, as a file has it."""
    parts = {
        "config": {"a": 1},
        "structure": "s",
        "seen": [[{"m": 1}, "f", []]],
        "rules": None,
        "refusal": None,
        **changes,
    }
    return base64.b64encode(zlib.compress(json.dumps(parts).encode())).decode()


def _verified(found: list[Line]) -> Line:
    return next(
        line["row"] for line in found if line.get("table") == "trials" and line["row"]["status"] == "verified"
    )


def _other(found: list[Line]) -> int:
    own = _verified(found)
    rows = (line["row"] for line in found if line.get("table") == "measurements")
    return int(
        next(row["id"] for row in rows if row["samples_us"] and row["candidate_id"] != own["candidate_id"])
    )


def _winner_of_another(found: list[Line]) -> None:
    sessions = [line["row"] for line in found if line.get("table") == "sessions"]
    decided = next(row for row in sessions if row["winner_id"] is not None)
    next(row for row in sessions if row["workload_id"] != decided["workload_id"]).update(
        winner_id=decided["winner_id"]
    )


def _winner_of_static(found: list[Line]) -> None:
    sessions = [line["row"] for line in found if line.get("table") == "sessions"]
    next(row for row in sessions if row["winner_id"] is not None).update(dynamic="m")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database that stays empty: refused files leave nothing."""
    with open_store(samples.empty_database(tmp_path_factory.mktemp("empty") / "x.db")) as opened:
        yield opened


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_file_is_refused_and_nothing_of_it_is_kept(
    tmp_path: Path, empty: Store, lines: list[str], name: str
) -> None:
    change, message = SPOILED[name]
    trusted = len(name) % 2 == 0  # trusted files are checked, too
    with pytest.raises(
        InputError, match=rf"import '.*file.jsonl', line \d+: .*{message}.*; nothing was imported"
    ):
        import_everything(empty, changed(tmp_path, lines, change), trusted=trusted)
    assert not sum(overview(empty).tables.values())


RAW = {
    "empty": (b"", "the file is empty"),
    "no JSON": (b"hello\n", "this is no JSON"),
    "no object": (b"[1]\n", "a line must be a JSON object"),
    "not UTF-8": (b'{"format": "\xff"}\n', "byte 13 is not UTF-8"),
    "NaN": (b'{"format": NaN}\n', "NaN is no number here"),
    "Infinity": (b'{"format": -Infinity}\n', "-Infinity is no number here"),
    "a number too large": (b'{"format": 1e999}\n', "'1e999' is no number here"),
    "a huge whole number": (b'{"format": 1' + b"0" * 99999 + b"}\n", "a whole number has 100000 digits"),
    "a megabyte of text": (
        b'{"format": "' + b"x" * (1 << 20) + b'"}\n',
        f"a text has 1048576 characters; {MAX_TEXT} are allowed",
    ),
    "a key twice": (b'{"format": 1, "format": 2}\n', "the key 'format' is given twice"),
    "deep": (
        b'{"format": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}\n",
        f"nested more than {MAX_DEPTH} deep",
    ),
    "very deep": (b"[" * 200_000 + b"\n", f"nested more than {MAX_DEPTH} deep"),
    "a line without end": (b"x" * (9 << 20), "it has more than 8388608 bytes"),
    "NUL": (b'{"format": "a\\u0000"}\n', "a text holds NUL or half a character"),
    "half a character": (b'{"format": "\\ud800"}\n', "a text holds NUL or half a character"),
    "too many members": (b"[" + b"0," * 100_001 + b"0]\n", "members; 100000 are allowed"),
    "a pickle": (b"\x80\x04cos\nsystem\n(S'true'\ntR.\n", "is not UTF-8"),
}


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_export(tmp_path: Path, empty: Store, name: str) -> None:
    content, message = RAW[name]
    file = tmp_path / "file.jsonl"
    file.write_bytes(content)
    with pytest.raises(InputError, match=f"import '.*file.jsonl', line 1: .*{message}") as caught:
        import_everything(empty, file)
    assert len(str(caught.value)) < 1000


def test_what_an_error_quotes_cannot_play_with_the_terminal(
    tmp_path: Path, store: Store, lines: list[str]
) -> None:
    file = changed(tmp_path, lines, lambda found: found[1].update(table="\x1b[2J" + "y" * 5000))
    with pytest.raises(InputError) as caught:
        import_everything(store, file)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_sql_in_a_text_is_a_text(tmp_path: Path, store: Store) -> None:
    name = "x'); DROP TABLE trials; --"
    with open_store(samples.empty_database(tmp_path / "theirs.db")) as theirs:
        add_session(
            theirs,
            samples.context(template=name, device='"; DELETE FROM sessions; --'),
            samples.verified(1, 10.0),
        )
        export_everything(theirs, tmp_path / "x.jsonl")
    import_everything(store, tmp_path / "x.jsonl", trusted=True)
    assert query(store, "SELECT DISTINCT template FROM records")[1] == [(name,)]
    assert check(store).faults == ()


@pytest.mark.parametrize("name", ["/dev/zero", "zero.jsonl"])
def test_a_file_without_end(tmp_path: Path, store: Store, name: str) -> None:
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="line 1: it has more than 8388608 bytes; nothing was imported"):
        import_everything(store, tmp_path / name)


def test_a_file_of_lines_without_end(
    tmp_path: Path, store: Store, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "MAX_FILE_BYTES", 10_000)
    with pytest.raises(InputError, match=r"line \d+: the file has more than 0 GB; merge the database itself"):
        import_everything(store, written(tmp_path, lines))


@pytest.mark.parametrize("name", ["x" * 240, "tab\t", os.fsdecode(b"\xff")])
def test_the_name_of_a_file_stands_for_its_origin_whatever_it_is(
    tmp_path: Path, store: Store, lines: list[str], name: str
) -> None:
    file = written(tmp_path, lines).rename(tmp_path / f"{name}.jsonl")
    origin = import_everything(store, file).origin
    assert origin.isprintable()
    assert origin.endswith(".jsonl")
    assert check(store).faults == ()


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, store: Store, name: str) -> None:
    with pytest.raises(InputError, match="name a file that can be read"):
        import_everything(store, tmp_path / name)


def test_an_interrupted_import_leaves_nothing(
    tmp_path: Path, store: Store, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Merger.add

    def interrupted(self: Merger, table: Any, rows: Any) -> None:
        if table.name == "trials" and self.database is store.database:
            raise KeyboardInterrupt
        whole(self, table, rows)

    monkeypatch.setattr(Merger, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_everything(store, written(tmp_path, lines), trusted=True)
    monkeypatch.undo()
    assert not sum(overview(store).tables.values())


def test_others_write_while_a_file_is_read(
    tmp_path: Path, store: Store, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    whole = Soundness.check

    def slowly(self: Soundness, table: Any, row: Any) -> None:
        if not seen:  # a session of another process, during the import
            with open_store(f"sqlite:///{store.name}", busy_seconds=0.2) as other:
                seen.append(add_session(other, samples.context(model="of another"), samples.predicted(1)))
        whole(self, table, row)

    monkeypatch.setattr(Soundness, "check", slowly)
    import_everything(store, written(tmp_path, lines), trusted=True)
    assert seen
    assert overview(store).tables["sessions"] == 4
