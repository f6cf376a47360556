"""What people see of a session while it runs."""

from __future__ import annotations

import io
import os
import re
import signal
import threading

import pytest
from rich.console import Console

from tests.support.fakes import FakeExecutor, FakeModel, request
from tilesight.problem.space import Config
from tilesight.records.trial import Measurement, Prediction, Status, TrialRecord
from tilesight.tuner import observers
from tilesight.tuner.loop import Tuner
from tilesight.tuner.observers import Bars, EventLines, Lines, Observer, Observers
from tilesight.tuner.recorded import interrupts_deferred


def test_a_line_a_phase() -> None:
    lines: list[str] = []
    Tuner(request(), FakeModel(), FakeExecutor(), Lines(lines.append)).run()
    assert [line.split(":")[0].strip() for line in lines] == ["explore", "measure", "compare"]
    assert re.search(
        r"128 candidates, 12\d predicted, \d failed \(\d profile_error\), best predicted 30 us", lines[0]
    )
    assert lines[1].startswith("  measure: 16 built, 16 measured, fastest 10 us (")


def test_bars_on_a_terminal_leave_only_their_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Bars(console).shown() as bars:
        Tuner(request(), FakeModel(), FakeExecutor(), bars).run()
    shown = out.getvalue()
    assert "128/128" in shown
    assert shown.count("explore: 128 candidates") == 1


def test_no_bar_outlives_an_interrupt() -> None:
    def interrupt(_stage: str, _config: object) -> None:
        raise KeyboardInterrupt

    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=True, width=100))
    with pytest.raises(KeyboardInterrupt), bars.shown():
        Tuner(request(), FakeModel(), FakeExecutor(interrupt), bars).run()
    assert bars._progress is None
    # the cursor is shown again
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_all_observers_are_told_in_order() -> None:
    heard: list[str] = []

    class Ear(Observer):
        def __init__(self, name: str) -> None:
            self._name = name

        def message(self, text: str) -> None:
            heard.append(f"{self._name}: {text}")

    Observers([Ear("a"), Ear("b")]).message("hello")
    assert heard == ["a: hello", "b: hello"]


def test_an_interrupt_waits_for_a_write_to_end() -> None:
    done = []

    def write() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        write()
    assert done


def test_sigterm_waits_too() -> None:
    done, ended = [], []
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append(len(done)))
    try:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append(1)
        assert ended == [1]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_interrupt_no_difference(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with interrupts_deferred():
        pass
    assert signal.getsignal(number) is before


def trial(predicted_us: float, measured_us: float | None = None) -> TrialRecord:
    prediction = Prediction(predicted_us, {}, "dram")
    if measured_us is None:
        return TrialRecord(Config({"block": 1}), Status.PREDICTED, prediction)
    measurement = Measurement((measured_us,), relative_error=0.0)
    return TrialRecord(Config({"block": 1}), Status.VERIFIED, prediction, measurement=measurement)


def test_a_tick_tells_how_far_a_phase_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(observers.time, "monotonic", lambda: now)
    lines: list[str] = []
    shown = Lines(lines.append)
    shown.tick()
    assert lines == []  # no phase runs
    shown.phase("explore", 40)
    shown.tick()
    shown.trials([trial(30.0), trial(20.0)])
    shown.advanced(10)
    now = 120.0
    shown.tick()
    shown.trial(trial(20.0, 25.0))
    shown.phase("measure", None)
    shown.advanced()
    shown.tick()
    shown.phase_done("done")
    shown.tick()
    assert lines == [
        "  explore: 0 of 40",
        "  explore: 10 of 40, best predicted 20.00 us, about 60 s left",
        "  measure: 1 done, best 25.00 us",
        "  measure: done (0.0 s)",
    ]


def test_ticks_come_from_a_thread_while_the_block_runs() -> None:
    lines: list[str] = []
    came = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        came.set()

    with Lines(write).ticking(0.01) as shown:
        shown.phase("explore", 4)
        assert came.wait(20)
    count = len(lines)
    assert lines[0] == "  explore: 0 of 4"
    assert not came.clear()
    assert not came.wait(0.1)
    assert len(lines) == count


def test_each_event_has_a_line() -> None:
    lines: list[str] = []
    Tuner(request(), FakeModel(), FakeExecutor(), EventLines(lines.append)).run()
    assert lines[0] == "  explore begins, 128 to do"
    assert sum(line.startswith("    predicted ") for line in lines) > 100
    assert sum(line.startswith("    verified ") for line in lines) >= 16
    assert any(line.startswith("    vendor: ") for line in lines)


def test_a_bar_has_the_best_time_beside_it() -> None:
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=True, width=120)).shown() as bars:
        bars.phase("measure", 4)
        bars.trial(trial(20.0, 25.0))
        bars.advanced(2)
    assert "best 25.00 us, about 0 s left" in out.getvalue()
