"""Other configs and sizes of a captured call, by the names and values of its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TILE = re.compile(
    r"^(block|blk|tile)_?([a-z]{0,3}|[mnkqdhs]\d?|size_?\w*|rows?|cols?|tokens?|seq|kv|dv|dk|i|j)\d?$"
    r"|^b[mnkqsdh]\d?$|_?block_?(size_?)?[mnk]$|^(bm|bn|bk)_?\d?$|^split_?(k|kv|num|length)?$|^num_splits?$"
    r"|^\w+_per_(thread|block|cta|warp)$|^npt$|^v_per_cta$|^reduce_threads$|^vec(tor)?_?(size|len|width)?$"
    r"|^panel_size$|^k_?pack$|^\w*_tile$|^chunk_per_\w+$|^(bs|bd|bv)$",
    re.IGNORECASE,
)
_STAGES = re.compile(r"^(num_?)?stages?\d?$|^\w*num_stages?\w*$", re.IGNORECASE)
_THREADS = re.compile(r"^(num_|thread_|n_)?threads?(_num|_?\d)?$|^thread_num$|^threads_arg$", re.IGNORECASE)
_SWITCH = re.compile(
    r"raster|swizzle|^policy$|^(use_)?persistent$|^warp_special\w*$|^(enable|use)_(ws|tma)$", re.IGNORECASE
)
_FIXED = re.compile(r"page|group|quant|scale|window|expert|top|chunk_size|block_indices", re.IGNORECASE)
_SIZE = (  # in the order in which one is chosen
    re.compile(r"^(seq\w*|s|t|n_?ctx|kv_?ctx|q_?ctx|\w*_?len\w*|ctx\w*|context\w*|length)$", re.IGNORECASE),
    re.compile(r"^(m|\w*tokens?|rows?|num_rows|n_rows|length_m)$", re.IGNORECASE),
    re.compile(r"^(n|numel|n_total|cols?|hidden\w*)$", re.IGNORECASE),
    re.compile(r"^(k|heads?|num_heads|nheads|h)$", re.IGNORECASE),
    re.compile(r"^(b|batch\w*|bsz)$", re.IGNORECASE),
)


def is_config(name: str, value: Any) -> bool:
    """Whether an argument chooses how a kernel works, and not what it computes."""
    if _FIXED.search(name) or not isinstance(value, int | bool):
        return bool(_SWITCH.search(name)) and isinstance(value, int | bool)
    if isinstance(value, bool):
        return bool(_SWITCH.search(name))
    return any(pattern.search(name) for pattern in (_TILE, _STAGES, _THREADS, _SWITCH))


def other_configs(
    given: Mapping[str, Any], *, only_schedule: bool = False, most: int = 8
) -> Iterator[dict[str, Any]]:
    """Configs beside `given`, each a change of one or two of its parameters.

    Args:
        given: Arguments of the call by name; those that are no config are left alone.
        only_schedule: Change stages and threads alone: data of the call depends on the tiles.
        most: How many.
    """
    tiles, stages, threads, switches = [], [], [], []
    for name, value in given.items():
        if not is_config(name, value):
            continue
        if isinstance(value, bool):
            switches.append({name: not value})
        elif _STAGES.search(name):
            stages += [{name: other} for other in (value + 1, value - 1) if other >= 0]
        elif _THREADS.search(name):
            stated = [256, 128] if value not in (128, 256) else [384 - value]
            threads += [{name: other} for other in stated if other != value]
        elif not only_schedule and not _SWITCH.search(name) and value >= 1:
            tiles += [{name: value // 2}] if value % 2 == 0 else []
            tiles += [{name: value * 2}]
    pairs = [{**a, **b} for a, b in zip(tiles, [*stages, *threads], strict=False)]
    listed = [*_in_turn([stages, tiles, threads]), *pairs, *([] if only_schedule else switches)]
    yield from listed[:most]


def other_sizes(given: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Sizes beside those of `given`: its first size by the order of `_SIZE` doubled and halved, then the
    second doubled."""
    found = []
    for pattern in _SIZE:
        for name, value in given.items():
            if pattern.search(name) and type(value) is int and value >= 1 and not is_config(name, value):
                found.append((name, value))
    for place, (name, value) in enumerate(found[:2]):
        yield {name: value * 2}
        if place == 0 and value >= 256:
            yield {name: value // 2}


def _in_turn(lists: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for place in range(max(map(len, lists), default=0)):
        for one in lists:
            if place < len(one):
                yield one[place]
