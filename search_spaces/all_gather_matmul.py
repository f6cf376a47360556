"""Search space of all_gather_matmul: the ways to bring the rows of all ranks to the product."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.group_operator import WORLD
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from .rank_products import LAST, product_workload, rows_within, space_of_ways
from .ways import PUSH

PULL = "pull"
STORE, TMA = "store", "tma"
WAYS: Mapping[str, str] = {
    PULL: "tiles read the rows of their rank by TMA, once for each column of tiles, the own ones first",
    PUSH: "some blocks copy the own rows to all peers, once, and tiles wait for them, the own ones first",
}
# 7 to 20 cores fill the link of an H100 or H200
SENDERS = (2, 4, 8, 12, 16, 20)
CHUNK_ROWS = (32, 64, 128, 256)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`. Chunks of rows divide those of a rank for `push`."""
    m, shard = workload.dims["m"], workload.dims["m"] // workload.dims[WORLD]
    heights = [rows for rows in CHUNK_ROWS if shard % rows == 0]
    ways = {way: meaning for way, meaning in WAYS.items() if way == PULL or heights}
    own = (
        Parameter("senders", (0, *SENDERS), "blocks that copy rows to peers and compute nothing", default=0),
        Parameter(
            "chunk_rows", (0, *CHUNK_ROWS), "rows that are copied before tiles may read them", default=0
        ),
        Parameter(
            "mechanism",
            (STORE, TMA),
            "how rows are copied to peers: by ordinary stores of 16 bytes a lane, or by TMA",
            default=STORE,
        ),
    )

    def whole(config: Config) -> str | None:
        height, rows = config.int("chunk_rows", 0), config.int("block_m")
        if config.str("mechanism", STORE) != TMA or height % rows == 0:
            return None
        return (
            f"chunk_rows={height} has no whole boxes of block_m={rows} rows for mechanism={TMA}: take "
            f"mechanism={STORE}, or a multiple of {rows}"
        )

    def divides(config: Config) -> str | None:
        height = config.int("chunk_rows", 0)
        if not height or shard % height == 0:
            return None
        return (
            f"chunk_rows={height} does not divide the {shard} rows of a rank: take "
            f"{' or '.join(map(str, heights))}"
        )

    def busy(config: Config) -> str | None:
        senders, height = config.int("senders", 0), config.int("chunk_rows", 0)
        if not senders or not height:
            return None
        sent = (workload.dims[WORLD] - 1) * (shard // height)
        if senders <= sent:
            return None
        return f"senders={senders} have {sent} chunks of chunk_rows={height} to send: take fewer of them"

    fewer: dict[str, Mapping[str, tuple[Value, ...]]] = {
        # own rows are there at once, and those of peers come in the order of the ranks
        PUSH: {"order": (LAST,), "senders": SENDERS, "chunk_rows": CHUNK_ROWS, "mechanism": (STORE, TMA)},
    }
    rules = (
        rows_within("a rank", shard),
        Constraint("chunks of a shard", divides),
        Constraint("whole boxes", whole),
        Constraint("busy senders", busy, is_waste=True),
    )
    return space_of_ways(product_workload(workload, m), target, ways, rules, fewer, own)
