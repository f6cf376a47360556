"""Search space of context_parallel_flash_attention: that of one device, and the ways of keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from . import flash_attention
from .flash_attention import SCHEDULES
from .ways import PUSH, SEQUENTIAL, SpaceOfWays, own_values, within_reach

WAYS: Mapping[str, str] = {
    SEQUENTIAL: "the library's all-gather of keys and values, then attention",
    PUSH: "some blocks copy the own keys and values to all peers, once, and tiles wait, the own ones first",
}
SENDERS = (2, 4, 8, 12, 16)
CHUNK_ROWS = (64, 128, 256, 512)
FEWEST_ROWS = 64  # queries of a tile; parts of the positions are whole tiles


def space(share: Workload, world: int, target: Target) -> SearchSpace:
    """The search space on `target`.

    Args:
        share: the queries and keys of one rank, as a workload of flash_attention.
        world: number of ranks.
        target: the target.
    """
    alone = flash_attention.space(share, target)
    own = {parameter.name: parameter for parameter in alone.parameters}
    part = share.dims["seq_len"] // (2 if share.attrs["causal"] else 1)
    chunks = [rows for rows in CHUNK_ROWS if part % rows == 0]
    cores = target.int("core.count")
    tiles = share.dims["batch"] * share.dims["heads"] * (share.dims["seq_len"] // FEWEST_ROWS)
    # all blocks of `push` stay, each on a core of its own; some of them send
    stay = "persistent" in own and max(SENDERS) < cores < tiles
    ways = tuple(WAYS) if stay and chunks else (SEQUENTIAL,)
    further = (
        Parameter("senders", (0, *SENDERS), "blocks that copy keys and values to peers", default=0),
        Parameter("chunk_rows", (0, *chunks), "keys that are copied before tiles may read them", default=0),
    )
    parameters = (
        Parameter("algorithm", ways, "; ".join(WAYS[way] for way in ways)),
        *alone.parameters,
        *(further if PUSH in ways else ()),
    )
    every: dict[str, tuple[Value, ...]] = {p.name: p.values for p in parameters}
    of_ways: dict[str, Mapping[str, tuple[Value, ...]]] = {
        SEQUENTIAL: {**every, **{p.name: (0,) for p in further}},
        # blocks that wait stay on their cores, and a warp of its own copies
        PUSH: {
            **every,
            "schedule": SCHEDULES[1:],
            "persistent": (cores,),
            "senders": SENDERS,
            "chunk_rows": tuple(chunks),
        },
    }
    rules = (
        *within_reach(target),
        *(own_values(parameter, of_ways, "attention") for parameter in parameters[1:]),
        _within_part("block_m", "queries", part),
        _within_part("block_n", "keys", part),
        _whole_chunks(),
        _busy(share, world),
    )
    return SpaceOfWays(
        parameters, (*rules, *alone.constraints), [{**of_ways[way], "algorithm": (way,)} for way in ways]
    )


def _within_part(name: str, of: str, part: int) -> Constraint:
    """A tile lies in one part of the positions."""

    def violation(config: Config) -> str | None:
        rows = config.int(name)
        if part % rows == 0:
            return None
        way_out = f"take {FEWEST_ROWS} or another divisor"
        return f"{name}={rows} {of} do not divide the {part} positions of a part: {way_out}"

    return Constraint("tiles of a part", violation)


def _whole_chunks() -> Constraint:
    """A tile waits for one chunk."""

    def violation(config: Config) -> str | None:
        height, keys = config.int("chunk_rows", 0), config.int("block_n")
        if not height or height % keys == 0:
            return None
        return f"chunk_rows={height} has no whole tiles of block_n={keys}: take a multiple of {keys}"

    return Constraint("chunks of tiles", violation)


def _busy(share: Workload, world: int) -> Constraint:
    """Each sender has a chunk to send."""

    rows = share.dims["batch"] * share.dims["seq_len"]

    def violation(config: Config) -> str | None:
        senders, height = config.int("senders", 0), config.int("chunk_rows", 0)
        if not senders or not height:
            return None
        sent = (world - 1) * (rows // height)
        if senders <= sent:
            return None
        return f"senders={senders} have {sent} chunks of chunk_rows={height} to send: take fewer of them"

    return Constraint("busy senders", violation, is_waste=True)
