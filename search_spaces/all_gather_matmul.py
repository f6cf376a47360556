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
STORE, TMA, COPY_ENGINE = "store", "tma", "copy_engine"
WAYS: Mapping[str, str] = {
    PULL: "tiles read the rows of their rank by TMA, once for each column of tiles, the own ones first",
    PUSH: "some blocks or the copy engines copy the own rows to all peers, once, and tiles wait for them, "
    "the own ones first",
}
# 7 to 20 cores fill the link of an H100 or H200
SENDERS = (2, 4, 8, 12, 16, 20)
CHUNK_ROWS = (32, 64, 128, 256)
MORE_ROWS = (512, 1024)  # of a chunk that a copy engine brings: each is a copy that the host starts
MOST_COPIES = 64  # of a call, each with one of its flag


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`. Chunks of rows divide those of a rank for `push`."""
    m, shard = workload.dims["m"], workload.dims["m"] // workload.dims[WORLD]
    heights = [rows for rows in (*CHUNK_ROWS, *MORE_ROWS) if shard % rows == 0]
    ways = {way: meaning for way, meaning in WAYS.items() if way == PULL or heights}
    own = (
        Parameter(
            "senders",
            (0, *SENDERS),
            "blocks that copy rows to peers and compute nothing; 0 where the copy engines copy",
            default=0,
        ),
        Parameter(
            "chunk_rows",
            (0, *CHUNK_ROWS, *MORE_ROWS),
            "rows that are copied before tiles may read them",
            default=0,
        ),
        Parameter(
            "mechanism",
            (STORE, TMA, COPY_ENGINE),
            "how rows are copied to peers: by ordinary stores of 16 bytes a lane, by TMA, or by the copy "
            "engines, which take no cores",
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

    def sent(height: int) -> int:
        return (workload.dims[WORLD] - 1) * (shard // height)

    def busy(config: Config) -> str | None:
        senders, height = config.int("senders", 0), config.int("chunk_rows", 0)
        if not senders or not height:
            return None
        if senders <= sent(height):
            return None
        return (
            f"senders={senders} have {sent(height)} chunks of chunk_rows={height} to send: take fewer of them"
        )

    def senders_of_mechanism(config: Config) -> str | None:
        senders, mechanism = config.int("senders", 0), config.str("mechanism", STORE)
        if config["algorithm"] != PUSH or (senders == 0) == (mechanism == COPY_ENGINE):
            return None
        if senders:
            return f"senders={senders} have nothing to send with mechanism={COPY_ENGINE}: take senders=0"
        return (
            f"senders=0 send nothing, and mechanism={mechanism} has no other way: take "
            f"senders={SENDERS[0]} or more, or mechanism={COPY_ENGINE}"
        )

    lacking = _without_copy_engines(target)

    def engines(config: Config) -> str | None:
        return lacking if config.str("mechanism", STORE) == COPY_ENGINE else None

    def few_copies(config: Config) -> str | None:
        height = config.int("chunk_rows", 0)
        if config.str("mechanism", STORE) != COPY_ENGINE or not height or sent(height) <= MOST_COPIES:
            return None
        return (
            f"chunk_rows={height} makes {sent(height)} copies, which the host starts one by one before the "
            f"product, {MOST_COPIES} at most: take larger chunks, or another mechanism"
        )

    def chunks_of_blocks(config: Config) -> str | None:
        height, most = config.int("chunk_rows", 0), max(CHUNK_ROWS)
        if height <= most or config.str("mechanism", STORE) == COPY_ENGINE:
            return None
        return (
            f"chunk_rows={height} lets tiles wait for long, and blocks send smaller chunks as fast: take "
            f"{most} or fewer"
        )

    fewer: dict[str, Mapping[str, tuple[Value, ...]]] = {
        # own rows are there at once, and those of peers come in the order of the ranks
        PUSH: {
            "order": (LAST,),
            "senders": (*SENDERS, 0),
            "chunk_rows": (*CHUNK_ROWS, *MORE_ROWS),
            "mechanism": (STORE, TMA, COPY_ENGINE),
        },
    }
    rules = (
        rows_within("a rank", shard),
        Constraint("chunks of a shard", divides),
        Constraint("whole boxes", whole),
        Constraint("senders of the mechanism", senders_of_mechanism),
        Constraint("copy engines", engines),
        Constraint("busy senders", busy, is_waste=True),
        Constraint("few copies", few_copies, is_waste=True),
        Constraint("chunks of blocks", chunks_of_blocks, is_waste=True),
    )
    return space_of_ways(product_workload(workload, m), target, ways, rules, fewer, own)


def _without_copy_engines(target: Target) -> str | None:
    """Why copies of the copy engines cannot be predicted on a target; None if they can."""
    for level in target.levels:
        path = f"network.{COPY_ENGINE}.gb_per_s"
        if path not in level.figures:
            return (
                f"mechanism={COPY_ENGINE} needs the figure '{level.name}.{path}', which target {target.name} "
                f"lacks: measure it with tilesight calibrate, or take mechanism={STORE}"
            )
    return None
