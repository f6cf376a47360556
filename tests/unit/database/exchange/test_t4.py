"""Files in T4, Kernel Tuner's format: they conform to its schema, and are read like any foreign file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import add_session, stock
from tilesight.database import Store, open_store, overview, query
from tilesight.database.exchange.t4_reader import ImportSubject, import_t4
from tilesight.database.exchange.t4_writer import INVALIDITY_OF, export_t4, fault_of
from tilesight.database.maintenance.check import check
from tilesight.errors import FailureKind, InputError
from tilesight.problem.workload import Workload

Document = dict[str, Any]
SUBJECT = ImportSubject(
    Workload("matmul", {"m": 64, "n": 64, "k": 64}, "float16"),
    "h200",
    "sm_90a",
    "NVIDIA H200",
    2_000_000,
    1000,
)

# as `store_output_file` writes them: no workload, times in milliseconds, more names than in the schema
KERNEL_TUNER: Document = {
    "results": [
        {
            "timestamp": "2023-12-21 10:44:42.236642+00:00",
            "configuration": {"block_size_x": 16, "tile": 2, "use_padding": 0, "layout": "row"},
            "times": {
                "compilation": 661.5,
                "benchmark": 393.9,
                "framework": 53.1,
                "search_algorithm": 0,
                "validation": 0,
                "runtimes": [12.25, 12.5, 12.75],
            },
            "invalidity": "correct",
            "correctness": 1,
            "measurements": [
                {"name": "time", "value": 12.5, "unit": "ms"},
                {"name": "GFLOP/s", "value": 615.6, "unit": ""},
            ],
            "objectives": ["time"],
        },
        {
            "configuration": {"block_size_x": 1024, "tile": 8, "use_padding": 1, "layout": "row"},
            "times": {"runtimes": []},
            "invalidity": "compile",
            "correctness": 1,
            "measurements": [{"name": "time", "value": "CompilationFailedConfig", "unit": "ms"}],
        },
    ],
    "schema_version": "1.0.0",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "x.db")) as opened:
        yield opened


def put(tmp_path: Path, document: object) -> Path:
    file = tmp_path / "in.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


# ---- writing


def test_a_session_as_t4(store: Store, tmp_path: Path) -> None:
    session_id = stock(store)
    assert export_t4(store, tmp_path / "x.json", session_id) == 4
    found = json.loads((tmp_path / "x.json").read_text())
    assert fault_of(found) is None
    by_block = {result["configuration"]["block_m"]: result for result in found["results"]}
    assert {block: result["invalidity"] for block, result in by_block.items()} == {
        1: "correct",
        3: "runtime",
        4: "compile",
        5: "correctness",
    }
    best = by_block[1]
    assert best["times"]["runtimes"] == [0.0125, 0.013]  # milliseconds
    assert best["correctness"] == 1
    measured = {m["name"]: (m["value"], m["unit"]) for m in best["measurements"]}
    assert measured["time"] == (0.01275, "ms")
    assert measured["tflops"][0] == pytest.approx(2e9 / 12.75 / 1e6)
    assert measured["relative_error"] == (1e-3, "")
    assert best["times"]["compilation_time"] == best["times"]["compilation"] == 1700.0
    assert by_block[5]["correctness"] == 0
    assert found["tilesight"]["dims"] == {"m": 4096, "n": 1024, "k": 8192}
    assert (found["tilesight"]["device"], found["tilesight"]["protocol"]) == ("NVIDIA H200", "cold")


def test_the_latest_session_that_measured_is_taken(store: Store, tmp_path: Path) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0))
    add_session(store, samples.context(device=""), samples.predicted(2))
    export_t4(store, tmp_path / "x.json")
    assert [
        r["configuration"]["block_m"] for r in json.loads((tmp_path / "x.json").read_text())["results"]
    ] == [1]


def test_every_failure_has_its_place_or_none() -> None:
    left_out = {"duplicate", "profile_error", "lower_memory", "build_memory", "run_memory"}
    assert {kind.value for kind in INVALIDITY_OF} | left_out == {kind.value for kind in FailureKind}


def test_what_cannot_be_exported(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no session here has measured anything"):
        export_t4(store, tmp_path / "x.json")
    session_id = add_session(store, samples.context(), samples.predicted(1))
    with pytest.raises(InputError, match=rf"session {session_id} has no results that T4 can hold"):
        export_t4(store, tmp_path / "x.json", session_id)
    with pytest.raises(InputError, match=r"session 12 is not in this database"):
        export_t4(store, tmp_path / "x.json", 12)
    with pytest.raises(InputError, match=r"name a file that ends in \.json"):
        export_t4(store, tmp_path / "x.t4", session_id)
    assert [
        path.name for path in tmp_path.iterdir() if path.suffix not in (".db",) and "x.db" not in path.name
    ] == []


# ---- reading


def test_an_own_file_comes_back_as_a_strangers(store: Store, tmp_path: Path) -> None:
    export_t4(store, tmp_path / "x.json", stock(store))
    with open_store(samples.empty_database(tmp_path / "y.db")) as other:
        found = import_t4(other, tmp_path / "x.json")
        assert (found.origin, found.written["trials"]) == ("x.json", 4)
        assert other.recall(samples.context()) == {}
        rows = query(
            other,
            "SELECT target, device, measured_us, tflops, session_state FROM records WHERE status = "
            "'verified'",
        )[1]
        assert rows == [
            ("h200 (imported)", "NVIDIA H200 (imported)", 12.75, pytest.approx(2e9 / 12.75 / 1e6), "complete")
        ]
        assert check(other).faults == ()
        assert not sum(import_t4(other, tmp_path / "x.json").written.values())


def test_a_file_of_kernel_tuner(store: Store, tmp_path: Path) -> None:
    file = put(tmp_path, KERNEL_TUNER)
    with pytest.raises(
        InputError,
        match=r"does not name what was tuned; add --kernel K --shape S --target T --device NAME",
    ):
        import_t4(store, file)
    found = import_t4(store, file, SUBJECT, "their machine")
    assert found.written["trials"] == 2
    rows = query(
        store,
        "SELECT template, config, status, samples_us, failure_kind, recorded_at FROM records ORDER BY status",
    )[1]
    assert rows[0][2:5] == ("failed", None, "build_error")
    # without a measured error a result is measured, not verified
    assert (rows[1][0], rows[1][2]) == ("t4", "measured")
    assert json.loads(rows[1][3]) == [12250.0, 12500.0, 12750.0]
    assert str(rows[1][5]).startswith("2023-12-21 10:44:42.236642")
    assert check(store).faults == ()
    assert not sum(import_t4(store, file, SUBJECT, "their machine").written.values())


Change = Callable[[Document], None]
SPOILED: dict[str, tuple[Change, str]] = {
    "results": (lambda d: d.update(results={}), "results must be a list"),
    "version": (lambda d: d.update(schema_version="one"), "schema_version must be a text like 1.0.0"),
    "no results": (lambda d: d.pop("results"), "results must be a list"),
    "a result": (lambda d: d["results"].append(7), r"results\[2\] must be an object"),
    "missing": (lambda d: d["results"][0].pop("times"), r"results\[0\] lacks times"),
    "invalidity": (
        lambda d: d["results"][0].update(invalidity="fine"),
        r"results\[0\].invalidity must be one of: timeout",
    ),
    "correctness": (
        lambda d: d["results"][0].update(correctness="1"),
        r"results\[0\].correctness must be a number",
    ),
    "timestamp type": (
        lambda d: d["results"][0].update(timestamp=7),
        r"results\[0\].timestamp must be a text",
    ),
    "timestamp": (
        lambda d: d["results"][0].update(timestamp="now"),
        r"results\[0\].timestamp='now' is no time",
    ),
    "age": (
        lambda d: d["results"][0].update(timestamp="0001-01-01T00:00:00+01:00"),
        r"timestamp='0001-01-01T00:00:00\+01:00' must be in the years 1 to 9999",
    ),
    "future": (
        lambda d: d["results"][0].update(timestamp="9999-12-31T23:59:59-14:00"),
        r"timestamp='9999-12-31T23:59:59-14:00' must be in the years 1 to 9999",
    ),
    "configuration": (
        lambda d: d["results"][0].update(configuration=[1]),
        r"results\[0\].configuration must be an object",
    ),
    "configuration value": (
        lambda d: d["results"][0]["configuration"].update(tile=[1]),
        r"configuration=.* texts, numbers and booleans",
    ),
    "empty configuration": (
        lambda d: d["results"][0].update(configuration={}),
        r"configuration=.* must be an object of texts",
    ),
    "configuration twice": (
        lambda d: d["results"].append(d["results"][0]),
        r"results\[2\].configuration is given twice",
    ),
    "compilation": (
        lambda d: d["results"][0]["times"].update(compilation="long"),
        r"times.compilation must be a number",
    ),
    "runtimes": (lambda d: d["results"][0]["times"].update(runtimes=7), r"times.runtimes must be a list"),
    "runtime": (
        lambda d: d["results"][0]["times"].update(runtimes=[-1]),
        r"times.runtimes must be numbers above 0",
    ),
    "runtime text": (
        lambda d: d["results"][0]["times"].update(runtimes=["1"]),
        r"times.runtimes must be numbers above 0",
    ),
    "runtime too large": (
        lambda d: d["results"][0]["times"].update(runtimes=[1e308]),
        r"finite in microseconds",
    ),
    "no time": (
        lambda d: d["results"][0].update(measurements=[], times={}),
        r"has no times.runtimes and no measurement 'time'",
    ),
    "unit": (
        lambda d: d["results"][0].update(times={}, measurements=[{"name": "time", "value": 1, "unit": "h"}]),
        r"time=1 'h' must be a number above 0 in ms, us, s, ns",
    ),
    "measurement": (
        lambda d: d["results"][0].update(measurements=[1]),
        r"measurements must be a list of objects",
    ),
    "measurement value": (
        lambda d: d["results"][0]["measurements"][0].update(value=None),
        r"measurements\[0\].value must be a number",
    ),
    "measurement name": (
        lambda d: d["results"][0]["measurements"][0].update(name=7),
        r"measurements\[0\]: name and unit must be texts",
    ),
    "subject": (lambda d: d.update(tilesight={"operator": "x"}), "tilesight must have the fields operator"),
    "subject type": (
        lambda d: d.update(tilesight=dict.fromkeys(_FIELDS, 7)),
        r"tilesight\.\w+=7 is of the wrong type",
    ),
}
_FIELDS = (
    *(
        "operator",
        "dims",
        "dtype",
        "attrs",
        "name",
        "template",
        "template_version",
        "target",
        "target_fingerprint",
        "arch",
    ),
    *("device", "software", "protocol", "dynamic", "flops", "min_bytes"),
)


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_file_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    change, message = SPOILED[name]
    document = copy.deepcopy(KERNEL_TUNER)
    change(document)
    with pytest.raises(InputError, match=rf"import '.*in.json': .*{message}.*; nothing was imported"):
        import_t4(store, put(tmp_path, document), SUBJECT)
    assert not sum(overview(store).tables.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON"),
        ("[]", "is an object"),
        ('{"results": [NaN]}', "NaN is no number"),
        ("[" * 100_000, "nested more than"),
    ],
)
def test_text_that_is_no_t4(store: Store, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "in.json").write_text(content)
    with pytest.raises(InputError, match=message):
        import_t4(store, tmp_path / "in.json", SUBJECT)


def test_a_time_in_another_unit(store: Store, tmp_path: Path) -> None:
    document = copy.deepcopy(KERNEL_TUNER)
    document["results"][0].update(times={}, measurements=[{"name": "time", "value": 3, "unit": "us"}])
    import_t4(store, put(tmp_path, document), SUBJECT)
    assert query(store, "SELECT samples_us FROM records WHERE status = 'measured'")[1] == [("[3.0]",)]


@pytest.mark.parametrize("stamp", ["0001-01-01", "1000-06-01 12:00:00+00:00", "9999-12-31T23:59:59.999999"])
def test_a_far_time_is_kept_and_harms_nothing(store: Store, tmp_path: Path, stamp: str) -> None:
    document = copy.deepcopy(KERNEL_TUNER)
    for result in document["results"]:
        result["timestamp"] = stamp
    (tmp_path / "in.json").write_text(json.dumps(document))
    import_t4(store, tmp_path / "in.json", SUBJECT)
    assert not sum(import_t4(store, tmp_path / "in.json", SUBJECT).written.values())
    ((started, session_id),) = query(store, "SELECT started_at, id FROM sessions")[1]
    assert str(started)[:10] == stamp[:10]
    assert 0 < session_id < 2**53
    assert check(store).faults == ()
    export_t4(store, tmp_path / "out.json", session_id)
    import_t4(store, tmp_path / "out.json", origin="again")
    assert check(store).faults == ()


@pytest.mark.parametrize("depth", [25, 900, 100_000])
def test_a_deep_file_is_refused(store: Store, tmp_path: Path, depth: int) -> None:
    (tmp_path / "in.json").write_text('{"a": ' * depth + "1" + "}" * depth)
    with pytest.raises(InputError, match=r"in.json': it is nested more than 24 deep; nothing was imported"):
        import_t4(store, tmp_path / "in.json", SUBJECT)


def test_a_file_without_end_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "in.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="it has more than 67108864 bytes; nothing was imported"):
        import_t4(store, tmp_path / "in.json", SUBJECT)
