"""Search space of mla_decode: blocks of block_m rows of heads, and parts of the keys that they share.

On Hopper a schedule says what runs beside the softmax: nothing but copies (`serial`), or products of other
groups of threads (`overlapped`), of two blocks that also read their keys together (`paired`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    MIN_WGMMA_COLUMNS,
    fits_instruction,
    not_beyond,
    pipelines,
    uneven,
)
from .matrix_unit import is_hopper, matrix_unit
from .split_kv import (
    GATHER,
    PARTS,
    STAGES,
    fits_core,
    for_gather,
    gathers,
    parts,
    pipelined_parts,
    steps_within_parts,
    unreducible,
)

ROWS = (16, 32, 64)
POLICIES = ("full_row", "full_col")
SCHEDULES = ("serial", "overlapped", "paired")
TILE = 64  # rows, keys and rotated columns of schedules with roles for groups of threads
ROLES: Mapping[str, Value] = {
    "block_m": TILE,
    "block_n": TILE,
    "num_stages": 2,
    "threads": 384,
    "policy": "full_row",
}


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, heads, kv_len, dim, q_len, _ = workload.dims.values()
    topk, width = int(workload.attrs["topk"]), dim + int(workload.attrs["rope_dim"])
    hip, keys = target.kind == "hip", topk or kv_len
    rows, alone = (heads, q_len) if topk else (heads * q_len, 1)
    element_bytes = DTYPE_BYTES[workload.dtype]
    key_tiles = (16, 32) if hip else (32, 64, 128)  # an LDS of 64 KiB has no room for more
    has_lengths = topk == 0 and (workload.attrs["page"] != 0 or workload.attrs["lengths"] != "full")
    page = int(workload.attrs["page"])
    # a tile of rotated keys has room for the weights; a copy through TMA reads one page, and the threads of
    # a warp copy half of a selected key
    copies = dim == 512 if topk else dim % 128 == 0 and (page == 0 or page >= TILE)
    has_roles = is_hopper(target) and width - dim == TILE and copies and rows > 32
    schedules = (SCHEDULES[:2] if topk else SCHEDULES) if has_roles else ()
    threads = (64, 128, 256) if hip else (128, 256, 384) if schedules else (128, 256)
    parameters = (
        Parameter("block_m", ROWS, "rows of a block: heads of queries with the same keys, and padding"),
        Parameter("block_n", key_tiles, "keys of one iteration of the main loop"),
        STAGES,
        Parameter("threads", threads, "threads that compute"),
        PARTS,
        Parameter("policy", POLICIES, "how warps divide scores and output: into rows first, or columns"),
        GATHER,
        *(
            (Parameter("schedule", schedules, "what runs beside the softmax", default="serial"),)
            if schedules
            else ()
        ),
    )

    def tile_bytes(config: Config) -> int:
        block_m, block_n = config.int("block_m"), config.int("block_n")
        weights = block_m * block_n if _is_serial(config) else 0  # which replace rotated keys
        return element_bytes * ((block_m + config.int("num_stages") * block_n) * width + weights)

    def instruction_columns(config: Config) -> int:
        if not _is_serial(config):  # these have no threads of their own for copies
            return 0
        unit = matrix_unit(target, config.int("block_m"), config.int("threads"))
        return max(config.int("block_n"), dim * 128 // config.int("threads")) if unit.name == "wgmma" else 0

    constraints = (
        pipelines(target),
        pipelined_parts(target, has_lengths),
        not_beyond("block_m", ROWS, "rows", rows),
        not_beyond("block_n", key_tiles, "keys", keys),
        *((_roles(-(-rows // TILE), "by_row" if topk else "by_page"),) if schedules else ()),
        _divides(target, dim),
        _by_index(topk) if topk else gathers(target, page, width),
        steps_within_parts(keys),
        parts(keys, batch * alone, target.int("core.count")),
        for_gather(
            lambda bulk: fits_instruction(target, bulk, instruction_columns, "take a smaller block_m")
        ),
        *fits_core(target, dim, tile_bytes),
    )
    return SearchSpace(parameters, constraints)


def _is_serial(config: Config) -> bool:
    return config.str("schedule", "serial") == "serial"


def _roles(row_tiles: int, gather: str) -> Constraint:
    """Groups of threads with roles of their own have the tiles that these were written for."""

    def violation(config: Config) -> str | None:
        schedule, threads = config.str("schedule", "serial"), config.int("threads")
        if schedule == "serial":
            if threads == ROLES["threads"]:
                return f"threads={threads} have roles that schedule=serial has not: take threads=256"
            return None
        for name, wanted in {**ROLES, "gather": gather}.items():
            if config[name] != wanted:
                return (
                    f"schedule={schedule} has three groups of 128 threads for tiles of 64 rows and 64 keys, "
                    f"and {name}={config[name]} is another division: take {name}={wanted}"
                )
        if schedule == "paired" and row_tiles % 2:
            return (
                f"schedule=paired leaves one of {row_tiles} blocks with the same keys alone: take overlapped"
            )
        return None

    return Constraint("schedule", violation)


def _divides(target: Target, dim: int) -> Constraint:
    """Warps divide both products alike, since rows of the output are scaled with those of the scores."""

    def violation(config: Config) -> str | None:
        if not _is_serial(config):
            return None
        block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        unit = matrix_unit(target, block_m, threads)
        found = {
            policy: (unit.split(policy, block_m, block_n, threads), unit.split(policy, block_m, dim, threads))
            for policy in POLICIES
        }
        scores, output = found[config.str("policy")]
        if scores is None or output is None or scores != output:
            return uneven(unit, block_m, block_n, threads)
        groups = scores[1]
        if unit.name == "wgmma" and block_n // groups < MIN_WGMMA_COLUMNS:
            return (
                f"block_n={block_n} leaves each of {groups} warpgroups fewer than {MIN_WGMMA_COLUMNS} "
                "columns: take a larger block_n"
            )
        if config["policy"] == "full_col" and found["full_row"] == found["full_col"]:
            return (
                f"policy=full_col divides {block_m}x{block_n} over {scores[0]}x{groups} warps as "
                "policy=full_row does: take full_row"
            )
        return unreducible(unit, block_n, groups)

    return Constraint("division over warps", violation)


def _by_index(topk: int) -> Constraint:
    def violation(config: Config) -> str | None:
        if config["gather"] == "by_row":
            return None
        return f"gather=by_page finds no pages where each query has its own topk={topk} keys: take by_row"

    return Constraint("gather", violation)
