"""Time limits for items that adapt to the successes seen so far."""

from __future__ import annotations

_MIN_SUCCESSES = 8  # before the limit changes: the first few items may be the quick ones


class TimeLimit:
    """A limit in seconds: `first_s` at first; after eight successes, `factor` times the slowest success.

    The adapted limit stays between `floor_s` and `first_s`. A hanging item then costs seconds and not
    minutes. Each slower success widens the limit again. `ValueError` is raised unless 0 < `floor_s` <=
    `first_s` and 1 <= `factor`.
    """

    def __init__(self, first_s: float, *, floor_s: float = 10.0, factor: float = 8.0) -> None:
        if not 0 < floor_s <= first_s:
            raise ValueError(
                f"a time limit of first {first_s:g} s needs a floor_s above 0 and up to that, not {floor_s:g}"
            )
        if factor < 1:
            raise ValueError(
                f"factor={factor:g} must be at least 1, or the slowest success would exceed the limit"
            )
        self._first_s, self._floor_s, self._factor = first_s, floor_s, factor
        self._successes, self._slowest_s = 0, 0.0

    @property
    def seconds(self) -> float:
        """The limit for an item that begins now."""
        if self._successes < _MIN_SUCCESSES:
            return self._first_s
        return min(self._first_s, max(self._floor_s, self._factor * self._slowest_s))

    def record(self, seconds: float) -> None:
        """Count a success and the time that it took."""
        self._successes += 1
        self._slowest_s = max(self._slowest_s, seconds)
