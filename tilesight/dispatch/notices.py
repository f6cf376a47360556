"""What dispatchers say by themselves: lines of the logger `tilesight.dispatch`.

Python writes them to standard error, unless the program sets up logging or raises the logger's level.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("tilesight.dispatch")
_said: set[str] = set()


def say(text: str) -> None:
    """Log one line, as a warning: the call that says it takes longer, or does less, than expected."""
    _log.warning("tilesight: %s", text)


def say_once(text: str) -> None:
    """Like `say`, at most once in a process."""
    if text not in _said:
        _said.add(text)
        say(text)
