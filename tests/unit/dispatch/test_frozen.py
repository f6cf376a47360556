"""Frozen dispatchers: records and tables alone, the same choice in every process, a digest of both."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.preloaded import run_python
from tests.unit.dispatch.harness import Harness, config, make_harness
from tests.unit.dispatch.select.test_selector import table
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.on_unknown import OnUnknown
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.dispatch.select.loaded_sources import LoadedSources
from tilesight.dispatch.select.winner_index import WinnerIndex
from tilesight.dispatch.table.table_file import DispatchTable, Segment, write_table
from tilesight.errors import InputError, NoCandidateError, UnknownNameError
from tilesight.records.winners import Winner


def recorded(made: Harness) -> list[Winner]:
    return [made.winner(64, 16, 5.0), made.winner(2000, 64, 7.0)]


def frozen(folder: Path, policy: OnUnknown = OnUnknown.REFUSE, **given: Any) -> Harness:
    return make_harness(folder, on_unknown=policy, **{"winners": recorded, **given})


def test_records_and_tables_alone_choose(tmp_path: Path) -> None:
    made = frozen(tmp_path, table=table())
    assert made.d.choose(m=64).source is ChoiceSource.RECORD
    assert made.d.choose(m=300).source is ChoiceSource.TABLE
    for unknown in (1500, 3000):  # a neighbour, a prediction and the default would all be legal
        with pytest.raises(
            InputError, match=f"m={unknown} is not among what this frozen dispatcher has loaded"
        ):
            made.d.choose(m=unknown)
    with pytest.raises(InputError, match=r"2 recorded shapes and a table for m=1..1000 \(digest \w{16}\)"):
        made.d(torch.zeros(1500, 4))
    with pytest.raises(InputError, match="then call reload"):
        made.d.prepare(m=[64, 1500])


def test_the_default_config_as_told(tmp_path: Path) -> None:
    made = frozen(tmp_path, OnUnknown.DEFAULT)
    choice = made.d.choose(m=1500)
    assert (choice.source, choice.config) == (ChoiceSource.DEFAULT, config(8))
    assert "on_unknown='default'" in choice.reason
    assert made.d.choose(m=64).source is ChoiceSource.RECORD


def test_the_nearest_as_told(tmp_path: Path) -> None:
    made = frozen(tmp_path, OnUnknown.NEAREST, table=table())
    beyond = made.d.choose(m=1500)
    assert (beyond.source, beyond.config) == (ChoiceSource.NEIGHBOUR, config(32))
    assert "m=1000, the nearest size" in beyond.reason
    made = frozen(tmp_path, OnUnknown.NEAREST)
    assert made.d.choose(m=1500).config == config(64)
    assert made.d.choose(m=40).config == config(16), "block_m=64 of the other record exceeds it"
    made = frozen(tmp_path, OnUnknown.NEAREST, winners=lambda s: [s.winner(2000, 64)])
    with pytest.raises(InputError, match="none of the nearest is legal here"):
        made.d.choose(m=40)


def test_a_choice_that_does_not_build_has_no_successor(tmp_path: Path) -> None:
    made = frozen(tmp_path, winners=lambda s: [s.winner(64, 16, fault="build")], table=table())
    with pytest.raises(NoCandidateError, match="it does not compile"):
        made.d(torch.zeros(64, 4))
    usual = make_harness(tmp_path, winners=lambda s: [s.winner(64, 16, fault="build")], table=table())
    usual.d(torch.zeros(64, 4))


def test_no_other_built_kernel_is_a_fallback(tmp_path: Path) -> None:
    made = frozen(tmp_path, winners=lambda s: [s.winner(64, 16, 5.0, ("m",))], dynamic=("m",))
    made.d(torch.zeros(64, 4))
    assert made.shapes.fallback((64,)) is not None
    assert made.shapes.fallback((100,)) is None
    usual = make_harness(tmp_path, winners=lambda s: [s.winner(64, 16, 5.0, ("m",))], dynamic=("m",))
    usual.d(torch.zeros(64, 4))
    assert usual.shapes.fallback((100,)) is not None


def test_nothing_is_replaced(tmp_path: Path) -> None:
    made = frozen(tmp_path)
    with pytest.raises(InputError, match="a frozen dispatcher replaces no kernel by itself"):
        made.d.improve(m=64)
    assert "frozen: nothing else chooses; other shapes are refused" in made.d.explain()
    assert f"digest of what was loaded: {made.d.digest()}" in made.d.explain()


def test_reload_reads_records_and_table_again(tmp_path: Path) -> None:
    made = frozen(tmp_path)
    made.d(torch.zeros(64, 4))
    before = made.d.digest()
    made.store.known = [made.winner(64, 32), made.winner(100, 16)]
    assert made.d.choose(m=64).config == config(16)
    made.d.reload()
    assert made.d.choose(m=64).config == config(32)
    assert made.d.choose(m=100).source is ChoiceSource.RECORD
    assert made.d.digest() != before


def test_threads_see_all_of_a_reload_or_nothing(tmp_path: Path) -> None:
    """Between two equal digests every choice is one of the records with that digest."""
    made = frozen(tmp_path)
    readings, expected = [], {}
    for turn in range(300):  # each with a digest of its own
        block = (16, 32)[turn % 2]
        known = [made.winner(64, block), made.winner(100, block), made.winner(200 + turn, 16)]
        readings.append(known)
        expected[LoadedSources(WinnerIndex(made.problem, known)).digest()] = config(block)
    made.store.known = readings[0]
    made.d.reload()
    wrong: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            before = made.d.digest()
            chosen = [made.d.choose(m=64).config, made.d.choose(m=100).config]
            if made.d.digest() == before and chosen != [expected[before]] * 2:
                wrong.append(f"{before}: {chosen}")

    watchers = [threading.Thread(target=watch) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for watcher in watchers:
            watcher.start()
        for known in readings:
            made.store.known = known
            made.d.reload()
    finally:
        ended.set()
        for watcher in watchers:
            watcher.join()
        sys.setswitchinterval(interval)
    assert not wrong


def test_no_thread_looks_into_the_middle_of_a_reload(tmp_path: Path) -> None:
    """Whenever the reload reads a part of what was loaded, another thread looks at the dispatcher."""
    made = frozen(tmp_path)
    before, after = [made.winner(64, 16)], [made.winner(64, 32)]
    made.store.known = before
    made.d.reload()
    seen = {(made.d.digest(), made.d.choose(m=64).config)}
    reloading = threading.get_ident()

    class Watched(LoadedSources):
        def __getattribute__(self, name: str) -> Any:
            if name in ("winners", "table", "notes", "shipped") and threading.get_ident() == reloading:
                look()
            return super().__getattribute__(name)

    def look() -> None:
        watcher = threading.Thread(target=lambda: seen.add((made.d.digest(), made.d.choose(m=64).config)))
        watcher.start()
        watcher.join()

    made.d._load_sources = lambda: Watched(WinnerIndex(made.problem, after))
    made.d.reload()
    look()
    digests = [LoadedSources(WinnerIndex(made.problem, known)).digest() for known in (before, after)]
    assert seen == {(digests[0], config(16)), (digests[1], config(32))}


def test_a_choice_made_of_earlier_records_is_not_kept(tmp_path: Path) -> None:
    """A thread that chooses while another one reloads leaves nothing behind."""
    made = frozen(tmp_path)
    selector, choose = made.shapes.selector, made.shapes.selector.choose

    def reloads_meanwhile(*given: Any) -> Any:
        found = choose(*given)
        selector.choose = choose  # type: ignore[method-assign]
        made.store.known = [made.winner(64, 32)]
        made.d.reload()
        return found

    selector.choose = reloads_meanwhile  # type: ignore[method-assign]
    assert made.d.choose(m=64).config == config(16)
    assert made.d.choose(m=64).config == config(32)


def test_the_digest_depends_on_what_decides_the_choice(tmp_path: Path) -> None:
    first = frozen(tmp_path)

    def digest(**given: Any) -> str:
        return frozen(tmp_path, **given).d.digest()

    same = digest(
        winners=lambda s: [
            replace(s.winner(2000, 64, 1.0), layer="elsewhere"),
            s.winner(64, 16, 2.0),
        ]
    )
    assert first.d.digest() == same, "times, order and places of records do not count"
    others = [
        digest(winners=lambda s: [s.winner(64, 16)]),
        digest(winners=lambda s: [s.winner(64, 32), s.winner(2000, 64)]),
        digest(winners=lambda s: [s.winner(64, 16, 5.0, ("m",)), s.winner(2000, 64)]),
        digest(table=table()),
        digest(table=table(blocks=(16, 64))),
        digest(attrs={"factor": 2}),
        digest(dynamic=("m",)),
    ]
    assert len({first.d.digest(), *others}) == 1 + len(others)


def test_many_records_are_compared_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = frozen(tmp_path)
    facts = made.shapes.selector.loaded.facts()
    assert list(facts) == ["the record of m=2000", "the record of m=64", "the table"]
    monkeypatch.setattr("tilesight.dispatch.select.loaded_sources.MOST_NAMED", 1)
    facts = made.shapes.selector.loaded.facts()
    assert list(facts) == ["the record of m=2000", "the table", "the digest of all records"]
    assert made.d.digest() in facts["the digest of all records"]


# ---- with `tilesight.dispatcher`

PROGRAM = """
import sys, tilesight
with tilesight.dispatcher("matmul", "cpu", n=16, k=16, table=sys.argv[1], frozen=True) as made:
    print(made.digest(), made.choose(m=64).config)
"""


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILESIGHT_LAYERS", raising=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a table for m of 1 to 100."""
    with dispatcher("matmul", "cpu", n=16, k=16) as made:
        write_table(table_for(made, 100), tmp_path / "table.json")
    return tmp_path / "table.json"


def table_for(made: Dispatcher, last: int) -> DispatchTable:
    template, target = made.problem.template, made.problem.target
    figures = target.name, target.fingerprint, target.arch
    return DispatchTable(
        *("matmul", "float32", {}, ("m", "n", "k"), {"n": 16, "k": 16}, "m", (), template.name),
        *(template.version, *figures, "", "", {}, "model"),
        kernels=(made.choose(m=64).config,),
        segments=(Segment(1, last, 0),),
    )


def test_every_process_has_the_same_digest_and_choice(path: Path) -> None:
    with dispatcher("matmul", "cpu", n=16, k=16, table=path, frozen=True) as made:
        mine = f"{made.digest()} {made.choose(m=64).config}"
        assert made._shapes.misses is None
        with pytest.raises(InputError, match="m=101 is not among what this frozen dispatcher has loaded"):
            made.choose(m=101)
        write_table(table_for(made, 200), path)
        made.reload()
        assert made.choose(m=101).source is ChoiceSource.TABLE
        write_table(table_for(made, 100), path)
    done = run_python("-c", PROGRAM, path)
    assert done.stdout.strip() == mine, done.stderr


def test_a_table_that_cannot_be_read_again_changes_nothing(path: Path) -> None:
    with dispatcher("matmul", "cpu", n=16, k=16, table=path, frozen=True) as made:
        before = made.digest()
        path.write_text(json.dumps({"format": 1}))
        with pytest.raises(InputError, match=r"table\.json"):
            made.reload()
        assert made.digest() == before
        assert made.choose(m=64).source is ChoiceSource.TABLE


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"frozen": True, "explore": True}, InputError, "explore would let processes use different kernels"),
        ({"frozen": True, "background": True}, InputError, "background would let processes"),
        ({"frozen": True, "on_miss": "serve"}, InputError, "on_miss='serve' would let processes"),
        ({"frozen": True, "config": {"block_m": 1}}, InputError, "config= chooses.*leave out frozen"),
        ({"frozen": True, "on_unknown": "guess"}, UnknownNameError, "refuse, default, nearest"),
        ({"on_unknown": "default"}, InputError, "is for frozen dispatchers: give frozen=True too"),
    ],
)
def test_wrong_options(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dispatcher("matmul", "cpu", n=16, k=16, **given)


def test_nothing_is_lowered_or_recorded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused call starts no process and writes no miss."""

    def no_process(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("tilesight.executor.local.LocalExecutor.__init__", no_process)
    with dispatcher("matmul", "cpu", n=16, k=16, table=path, frozen=True) as made:
        with pytest.raises(InputError, match="m=500"):
            made(torch.zeros(500, 16), torch.zeros(16, 16))
        assert made.misses == []
