"""What people see of a session while it runs."""

from __future__ import annotations

import io
import os
import re
import signal

import pytest
from rich.console import Console

from tests.support.fakes import FakeExecutor, FakeModel, request
from tilesight.tuner.loop import Tuner
from tilesight.tuner.observers import Bars, Lines, Observer, Observers
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
