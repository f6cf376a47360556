"""Ctrl-C and SIGTERM: the first one ends a command in order, however many follow."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
PATIENCE_S = 10.0  # that the end of a command may take: later signals interrupt it, or it could hang for ever


class Interrupts:
    """The handler of both signals for one command.

    The first signal raises `KeyboardInterrupt`, upon which work is recorded and processes are ended. Signals
    that follow within `PATIENCE_S` would interrupt that, and are ignored. `is_finished` is set when the
    command is done and the process ends; from then on all are ignored. It is no method: Python handles a
    signal that came meanwhile at the start of a call, but not before an assignment.
    """

    def __init__(self) -> None:
        self.exit_code = EXIT_CODES[signal.SIGINT]  # of an interrupted command
        self._last_s: float | None = None
        self.is_finished = False
        self._before: dict[signal.Signals, object] = {}

    def install(self) -> None:
        """Handle the signals from now on. Only the main thread can, and only those that are not ignored."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in EXIT_CODES:
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):  # e.g. by nohup
                self._before[number] = before
                signal.signal(number, self._handle)

    def ignore(self) -> None:
        """Let the system ignore the signals until the process is gone.

        When Python ends, it first gives up its handlers, and a signal would end the process by itself.
        """
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def uninstall(self) -> None:
        """Set the former handlers back."""
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.is_finished or (self._last_s is not None and now - self._last_s < PATIENCE_S):
            return
        if self._last_s is None:
            self.exit_code = EXIT_CODES[signal.Signals(number)]
        self._last_s = now
        raise KeyboardInterrupt
