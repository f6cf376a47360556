"""How long one item may take, learnt from those that came through."""

from __future__ import annotations

_ENOUGH = 8  # successes before the limit leaves its first value: the first few may be the quick ones


class TimeLimit:
    """A limit in seconds that begins at `first_s` and, after eight successes, is `factor` times the slowest of them, but
    never below `floor_s` nor above `first_s`.

    A hanging item then costs seconds and not minutes. The slowest and not a typical success counts, so the limit only
    ever tightens as far as is known to be safe `factor` times over, and widens again with each slower success.
    """

    def __init__(self, first_s: float, *, floor_s: float = 10.0, factor: float = 8.0) -> None:
        if not 0 < floor_s <= first_s:
            raise ValueError(f"a time limit of first {first_s:g} s needs a floor_s above 0 and up to that, not {floor_s:g}")
        if factor < 1:
            raise ValueError(f"factor={factor:g} must be at least 1, or the slowest success would have been refused")
        self._first_s, self._floor_s, self._factor = first_s, floor_s, factor
        self._successes, self._slowest_s = 0, 0.0

    @property
    def seconds(self) -> float:
        """The limit for an item that begins now."""
        if self._successes < _ENOUGH:
            return self._first_s
        return min(self._first_s, max(self._floor_s, self._factor * self._slowest_s))

    def saw(self, seconds: float) -> None:
        """An item came through in that time."""
        self._successes += 1
        self._slowest_s = max(self._slowest_s, seconds)
