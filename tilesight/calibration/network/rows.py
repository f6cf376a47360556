"""Rows of a calibration as lines of JSON, and back: the times of all ranks in one step."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .steps import Kind, NetworkStep, Times, joined

DIGITS = 3  # of microseconds; events of CUDA have steps of 32 ns
_NUMBERS = ("blocks", "rounds", "size_bytes", "peers")


def row_line(step: NetworkStep, row: tuple[Times, ...]) -> str:
    """One line, without its end."""
    entry: dict[str, object] = {"kind": step.kind.name, "name": step.name}
    entry |= {name: getattr(step, name) for name in _NUMBERS}
    entry["us"] = [[round(us, DIGITS) for us in one.us] for one in row]
    if any(one.pushed_gb_per_s for one in row):
        entry["pushed_gb_per_s"] = [[round(rate, 1) for rate in one.pushed_gb_per_s] for one in row]
    return json.dumps(entry, separators=(",", ":"))


def rows_of(lines: Iterable[str]) -> dict[NetworkStep, tuple[Times, ...]]:
    """The rows by step, without their titles; further samples of a step follow its first ones.

    Lines without a kind are remarks.
    """
    rows: dict[NetworkStep, tuple[Times, ...]] = {}
    for entry in map(json.loads, lines):
        if "kind" not in entry:
            continue
        numbers = {name: int(entry[name]) for name in _NUMBERS}
        step = NetworkStep("", Kind[entry["kind"]], entry["name"], **numbers)
        pushed = entry.get("pushed_gb_per_s") or [[] for _ in entry["us"]]
        row = tuple(Times(tuple(us), tuple(own)) for us, own in zip(entry["us"], pushed, strict=True))
        rows[step] = joined(rows[step], row) if step in rows else row
    return rows
