"""`tilesight watch` and `tilesight tune --live`: what they show of a running session, and where."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from tests.support.fakes import FakeExecutor, FakeModel, request
from tests.support.page_sessions import HOSTILE, recorded_session
from tests.unit.cli.test_commands import TUNE, Shell
from tests.unit.conftest import FakeLine
from tilesight.api import watching
from tilesight.cli import live_view
from tilesight.cli.live_view import Plain, Screen, block, line, renderable
from tilesight.cli.watch import ENDED
from tilesight.database import Store, open_store
from tilesight.errors import DatabaseError, Failure, FailureKind, InputError
from tilesight.problem.config import Config
from tilesight.records.progress import SessionProgress
from tilesight.records.session import Baseline, Effort, SessionState
from tilesight.records.trial import Measurement, Status, TrialRecord
from tilesight.tuner.live import LiveLines, LiveSession
from tilesight.tuner.loop import Tuner

ROOT = str(Path(__file__).resolve().parents[3])
FOUND = recorded_session(40, 12)
CONTEXT, TRIALS = FOUND.summary.context, FOUND.result.trials
MEASURED = [trial for trial in TRIALS if trial.status is Status.VERIFIED]
PREDICTED = [replace(t, status=Status.PREDICTED, measurement=None, build=None) for t in MEASURED]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/performance.db"
    monkeypatch.setenv("TILESIGHT_DB", url)
    monkeypatch.setattr(watching.time, "sleep", lambda _s: None)
    return url


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    return Shell(capsys, fake_line)


def begun(store: Store, effort: Effort = Effort.QUICK) -> int:
    return store.begin(CONTEXT, effort, 0, {}, FOUND.result.census)


def stated(found: SessionProgress) -> dict[str, str]:
    """The labelled lines of the block."""
    return {label: text for label, text, _ in block(found) if label}


# ---- from the database


def test_a_session_is_followed_from_its_predictions_to_its_end(url: str) -> None:
    with open_store(url) as store:
        made = begun(store)
        found = watching.watch()

        def now() -> SessionProgress:
            progress = next(found)
            assert progress is not None
            return progress

        assert stated(now())["best"] == "none yet"
        store.record_many(made, CONTEXT, PREDICTED)
        predicted = now()
        assert predicted.session_id == made
        assert predicted.counts == {"predicted": len(PREDICTED)}
        assert predicted.best is not None
        assert predicted.best.ranking_us == min(trial.ranking_us or 0.0 for trial in PREDICTED)
        assert "predicted, nothing measured yet" in stated(predicted)["best"]
        # all of them have one lowering time: they stand for variants that share a lowering
        assert (predicted.left, predicted.of, predicted.left_what) == (127, 128, "lowerings")
        store.record_many(made, CONTEXT, MEASURED[:3])
        store.record_baselines(made, [Baseline("cuBLAS", (208.0,))])
        measured = now()
        best = min(trial.measured_us or 0.0 for trial in MEASURED[:3])
        assert measured.best is not None
        assert measured.best.measured_us == best
        assert (measured.left, measured.of, measured.left_what) == (13, 16, "measurements")
        assert measured.vendor_us == 208.0
        assert measured.last.startswith("verified ")
        store.finish(made, SessionState.COMPLETE)
        ended = now()
        assert ended.state is SessionState.COMPLETE
        assert "left" not in stated(ended)
        with pytest.raises(StopIteration):
            next(found)


def test_it_waits_for_the_database_and_for_the_next_session(url: str) -> None:
    found = watching.watch()
    assert next(found) is None  # no file
    Path(url.removeprefix("sqlite:///")).touch()
    assert next(found) is None  # a file without tables, which is just being made
    with open_store(url) as store:
        ended = begun(store)
        store.finish(ended, SessionState.INTERRUPTED)
        assert next(found) is None
        made = begun(store)
        progress = next(found)
        assert progress is not None
        assert progress.session_id == made


def test_a_session_whose_process_died_has_ended(url: str) -> None:
    with open_store(url) as store:
        made = begun(store)
        store.database.write(
            lambda connection: connection.exec_driver_sql("UPDATE sessions SET owner = 'elsewhere|1|2'")
        )
        assert store.running_sessions() == [made]  # of another host, whose processes cannot be looked up
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        owner = f"{os.uname().nodename}|{dead.pid}|1"
        store.database.write(
            lambda connection: connection.exec_driver_sql(f"UPDATE sessions SET owner = '{owner}'")
        )
        assert store.running_sessions() == []
        [last] = watching.watch(made)
        assert last is not None
        assert last.state is SessionState.INTERRUPTED


def test_the_best_is_a_checked_time_before_a_noisy_one_before_a_prediction(url: str) -> None:
    noisy = [replace(trial, status=Status.NOISY) for trial in MEASURED]
    with open_store(url) as store:
        made = begun(store)
        store.record_many(made, CONTEXT, [PREDICTED[0], *noisy[1:]])
        best = store.session_progress(made)[0].best
        assert best is not None
        assert best.noisy_us == min(trial.noisy_us or 0.0 for trial in noisy[1:])
        slowest = max(MEASURED, key=lambda trial: trial.measured_us or 0.0)
        store.record(made, CONTEXT, slowest)
        best = store.session_progress(made)[0].best
        assert best is not None
        assert best.config == slowest.config


def test_what_cannot_be_watched_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no database at"):
        next(watching.watch(7))
    open_store(url).close()
    with pytest.raises(InputError, match="session 7 is not in this database"):
        next(watching.watch(7))
    other = tmp_path / "other.db"
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sqlite3; sqlite3.connect({str(other)!r}).execute('CREATE TABLE t(x)')",
        ],
        check=True,
    )
    with pytest.raises(DatabaseError, match="holds no TileSight tables"):
        next(watching.watch(database=str(other)))


# ---- what is shown


def progress_of(**changes: Any) -> SessionProgress:
    return replace(
        SessionProgress("matmul M4 on h200", seconds=75.0, best=MEASURED[0], counts={"verified": 3}),
        **changes,
    )


def test_the_block_says_what_is_best_what_limits_it_and_what_is_left() -> None:
    trial = MEASURED[0]
    found = progress_of(
        trying=("building: a=1", "measuring: a=2"), left=3, of=16, left_what="measurements", left_s=130
    )
    text = renderable(found).plain
    assert re.search(r"^best +\d\S+ us verified \(predicted \d", text, re.MULTILINE)
    assert str(trial.config) in text
    assert trial.prediction is not None
    assert re.search(rf"^limits +{trial.prediction.limiting}, busy .* \(predicted\)$", text, re.MULTILINE)
    assert re.search(r"^now +building: a=1\n +measuring: a=2$", text, re.MULTILINE)
    assert re.search(r"^left +at most 3 of 16 measurements, about 2 min$", text, re.MULTILINE)
    assert f"left: at most 3 of 16 measurements, about 2 min, best config: {trial.config}" in line(found)
    many = progress_of(trying=tuple(f"building: a={n}" for n in range(9)))
    assert ("", "and 3 more", "") in list(block(many))


def test_hostile_texts_cannot_steer_the_terminal() -> None:
    trial = replace(MEASURED[0], config=Config({"name": HOSTILE + "\r\x9b2J\x07\n"}))
    found = progress_of(title=HOSTILE, best=trial, trying=(HOSTILE,), last=HOSTILE)
    console = Console(file=io.StringIO(), width=2000)
    console.print(renderable(found))
    for text in (console.file.getvalue(), line(found)):  # type: ignore[attr-defined]
        assert not set(text) & {"\x1b", "\r", "\x9b", "\x07"}
        assert "<script>" in text
    assert "\n" not in line(found)


def test_long_lines_are_cut_to_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True)
    with Live(renderable(progress_of(trying=("building: " + "a=1," * 60,))), console=console):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    assert max(map(len, shown.splitlines())) <= 40
    assert "a=1,a=1,a…" in shown


def test_plain_lines_come_where_something_is_new_or_time_has_passed() -> None:
    lines: list[str] = []
    plain = Plain(lines.append, every_s=1e9)
    plain.show(progress_of())
    plain.show(progress_of(counts={"verified": 4}))  # no news
    plain.show(progress_of(best=MEASURED[1]))
    plain.show(progress_of(best=MEASURED[1], state=SessionState.COMPLETE))
    assert [text.startswith("  ") for text in lines] == [False, True, True, True]
    lines.clear()
    often = Plain(lines.append, every_s=0.0)
    often.show(progress_of())
    often.show(progress_of())
    assert len(lines) == 3


@pytest.mark.parametrize("term", ["", "dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert live_view.moves_cursor(Terminal())
    assert not live_view.moves_cursor(io.StringIO())
    monkeypatch.setenv("TERM", term)
    assert not live_view.moves_cursor(Terminal())


def test_the_last_state_stays_on_the_screen() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, force_terminal=True, width=100)).shown() as screen:
        screen.say("waiting")
        screen.show(progress_of())
        screen.show(progress_of(state=SessionState.COMPLETE))
    assert out.getvalue().rindex("complete after 75 s") > out.getvalue().rindex("\x1b[2K")  # not erased
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


# ---- of this process


def test_a_live_session_knows_what_is_tried_and_what_is_left() -> None:
    live = LiveSession(lambda _text: None)
    seen: list[SessionProgress] = []

    def look(_stage: str, _config: Config) -> Failure | None:
        seen.append(live.progress)
        return None

    live.started("axpy X0 on cpu")
    Tuner(request(), FakeModel(), FakeExecutor(look), live).run()
    explored = [found for found in seen if found.phase == "explore"]
    assert any(text.startswith("lowering: block=") for text in explored[0].trying)
    assert (explored[0].left, explored[0].of, explored[0].left_what) == (128, 128, "lowerings")
    assert explored[-1].left is not None
    assert explored[-1].left < 8
    assert explored[-1].best is not None
    assert explored[-1].best.measured_us is None
    measured = [found for found in seen if found.phase == "measure"]
    assert any(text.startswith("measuring: ") for found in measured for text in found.trying)
    assert any(text.startswith("building: ") for found in measured for text in found.trying)
    last = live.progress
    assert last.state is SessionState.COMPLETE
    assert last.trying == ()
    assert last.best is not None
    assert last.best.measured_us == 10.0
    assert last.vendor_us == 12.0


def test_a_budget_bounds_the_time_that_is_left() -> None:
    assert LiveSession(lambda _text: None).progress.left_s is None
    left_s = LiveSession(lambda _text: None, budget_s=5.0).progress.left_s
    assert left_s is not None
    assert 0 < left_s <= 5.0


def test_a_noisy_time_is_no_better_than_a_checked_one() -> None:
    live = LiveSession(lambda _text: None)
    config = Config({"a": 1})
    live.trial(TrialRecord(config, Status.NOISY, measurement=Measurement((1.0, 9.0))))
    assert live.progress.best is not None
    live.trial(MEASURED[0])
    assert live.progress.best == MEASURED[0]
    live.trial(TrialRecord(config, Status.FAILED, failure=Failure(FailureKind.RUN_ERROR, "no")))
    assert live.progress.best == MEASURED[0]


def test_live_lines_are_written_at_each_better_time() -> None:
    lines: list[str] = []
    live = LiveLines(lines.append, line)
    live.started("axpy X0 on cpu")
    Tuner(request(), FakeModel(), FakeExecutor(), live).run()
    better = [
        float(found[1]) for text in lines if (found := re.match(r"  measure, best (\S+) us verified", text))
    ]
    assert better == sorted(better, reverse=True)
    assert better[-1] == 10.0


# ---- the commands


def test_tune_live_writes_lines_where_no_terminal_is(shell: Shell) -> None:
    code, out, err = shell(*TUNE, "--live")
    assert code == 0
    assert "best config: block=30,stages=3,swizzle=true" in out
    assert "limits: vector (predicted)" in err
    assert "limits:" not in out
    assert "\x1b" not in err


@pytest.mark.parametrize("other", ["--quiet", "--verbose"])
def test_live_excludes_other_kinds_of_progress(shell: Shell, other: str) -> None:
    code, _, err = shell(*TUNE, "--live", other)
    assert (code, err) == (2, f"error: {other} and --live exclude each other: give one of them\n")


def test_watch_of_a_complete_session_shows_it_once(shell: Shell, url: str) -> None:
    shell(*TUNE)
    [summary] = watching_sessions(url)
    code, out, err = shell("watch", str(summary))
    assert (code, err) == (0, "")
    assert re.match(r"axpy X0: n=1024 float32 on cpu\n  session \d+ complete after \d+ s, best 10.00 us", out)
    assert shell("watch", "7")[0] == 2
    assert shell("watch", "x")[0] == 2


def watching_sessions(url: str) -> list[int]:
    with open_store(url) as store:
        return [found.id for found in store.session_summaries()]


@pytest.fixture
def terminal() -> Iterator[Callable[..., tuple[str, int]]]:
    """Runs `tilesight watch` in a pseudo-terminal and sends Ctrl-C once a text is shown. The function returns
    what was shown and the exit code.
    """
    children: list[int] = []

    def run(url: str, term: str, awaited: str) -> tuple[str, int]:
        child, terminal = pty.fork()
        if not child:
            environment = {
                **os.environ,
                "PYTHONPATH": ROOT,
                "TILESIGHT_DB": url,
                "TERM": term,
                "COLUMNS": "90",
            }
            os.execve(sys.executable, [sys.executable, "-m", "tilesight.cli.main", "watch"], environment)
        children.append(child)
        output, deadline = b"", time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                output += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if awaited and awaited.encode() in output:
                os.kill(child, signal.SIGINT)
                awaited = ""
        _, status = os.waitpid(children.pop(), 0)
        os.close(terminal)
        return output.decode(errors="replace"), os.waitstatus_to_exitcode(status)

    yield run
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_ctrl_c_ends_watch_and_leaves_the_terminal_in_order(
    url: str, terminal: Callable[..., tuple[str, int]]
) -> None:
    with open_store(url) as store:
        made = begun(store)
        store.record_many(made, CONTEXT, MEASURED[:3])
        shown, code = terminal(url, "xterm", "left")
        assert store.running_sessions() == [made]
    assert code == 130
    assert ENDED in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is shown again
    assert "Traceback" not in shown


def test_a_dumb_terminal_gets_lines(url: str, terminal: Callable[..., tuple[str, int]]) -> None:
    with open_store(url) as store:
        made = begun(store)
        store.record_many(made, CONTEXT, MEASURED[:3])
        shown, code = terminal(url, "dumb", "best")
    assert code == 130
    assert "\x1b" not in shown
    assert "limits: " in shown
