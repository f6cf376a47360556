"""Constraints for kernels that reduce rows: `reduce_threads` neighbouring threads of a block share each row.

A block of `threads` threads works on threads / reduce_threads rows at a time, on `block_<dimension>` rows in
all.
"""

from __future__ import annotations

from collections.abc import Callable

from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..target.spec import Target
from .constraints import fits_block, fits_shared_memory

MIN_REDUCE_THREADS = 8  # with fewer, each 128-byte line of a row takes several loads
MIN_THREADS = 64
VECTORS = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_ROWS = 4  # of a thread, which reads w once for all of them
LOADS = (1, 2, 4)
REGISTER_STEPS = (6, 12)  # what shared memory leaves of 300 KB to 1024 or 512 threads
FLOAT_BYTES = 4
TEMPORARY_REGISTERS = 32  # of a thread: addresses, conditions and intermediate values


def groups(config: Config) -> int:
    """Rows that the block works on at a time; at least one, so that constraints accept any config."""
    return max(1, config.int("threads") // config.int("reduce_threads"))


def rows_of_a_thread(config: Config, block: str) -> int:
    """Rows that one thread works on, one after another."""
    return max(1, config.int(block) // groups(config))


def whole_rows(block: str, most: int) -> Constraint:
    """Threads divide into whole groups, and the rows of a block into one to `most` per group."""

    def violation(config: Config) -> str | None:
        threads, lanes, rows = config.int("threads"), config.int("reduce_threads"), config.int(block)
        if lanes > threads:
            return f"reduce_threads={lanes} exceeds threads={threads}: take at most reduce_threads={threads}"
        together = groups(config)
        if rows % together == 0 and rows <= most * together:
            return None
        few = (
            f"{block}={rows} is not a multiple of"
            if rows % together
            else f"{block}={rows} is more than {most} times"
        )
        legal = ", ".join(str(together * 2**i) for i in range(most.bit_length()))
        return (
            f"{few} the {together} rows that {threads} threads work on at a time, {lanes} per row: take "
            f"{block}={legal}"
        )

    return Constraint("whole rows", violation)


def no_idle_threads(
    block: str, rows_name: str, rows: int, length_name: str, length: int, warp: int
) -> Constraint:
    """Half of the threads of a row, half of the groups, or half of the rows of a block would not suffice."""

    def violation(config: Config) -> str | None:
        threads, lanes, vector = config.int("threads"), config.int("reduce_threads"), config.int("vector")
        if lanes > MIN_REDUCE_THREADS and lanes // 2 * vector >= length:
            return (
                f"reduce_threads={lanes} is wasted on {length_name}={length}: take "
                f"reduce_threads={lanes // 2}"
            )
        if threads > max(MIN_THREADS, warp) and threads > lanes and threads // 2 // lanes >= rows:
            return (
                f"threads={threads} is wasted on {rows_name}={rows} with reduce_threads={lanes}: take "
                f"threads={threads // 2}"
            )
        if config.int(block) > groups(config) and config.int(block) // 2 >= rows:
            return (
                f"{block}={config[block]} is wasted on {rows_name}={rows}: take "
                f"{block}={config.int(block) // 2}"
            )
        return None

    return Constraint("idle threads", violation, is_waste=True)


def widest_vectors(length_name: str, length: int, element_bytes: int, values: tuple[int, ...]) -> Constraint:
    """Vectors are aligned in every row, and have the largest such width or half of it.

    A memory instruction moves at most 16 bytes.
    """
    legal = [v for v in values if length % v == 0 and v * element_bytes <= 16][-2:]
    # loads of 2 bytes only if rows allow nothing else
    legal = [v for v in legal if v * element_bytes >= 4] or legal
    nearest = ", ".join(map(str, legal))

    def violation(config: Config) -> str | None:
        vector = config.int("vector")
        if length % vector:
            return f"vector={vector} must divide {length_name}={length}; nearest legal values: {nearest}"
        if vector not in legal:
            return (
                f"vector={vector} moves {vector * element_bytes} bytes at a time, and {length_name}={length} "
                "allows "
                f"{legal[-1] * element_bytes}; nearest legal values: {nearest}"
            )
        return None

    return Constraint("vector width", violation)


def within_row(parts: Callable[[Config], int], length_name: str, length: int) -> Constraint:
    """A row has as many parts as are loaded together."""

    def violation(config: Config) -> str | None:
        unroll, needed = config.int("unroll"), parts(config)
        if unroll == 1 or unroll // 2 < needed:
            return None
        step = config.int("reduce_threads") * config.int("vector")
        return (
            f"unroll={unroll} is wasted on {length_name}={length}, which is {needed} steps of {step}: take "
            f"unroll={unroll // 2}"
        )

    return Constraint("unroll within row", violation)


def fits_thread(target: Target, needed: Callable[[Config], int], way_out: str) -> Constraint:
    """The values of a thread fit into its registers."""
    most, file = target.int("thread.max_registers"), target.int("core.memory.registers.bytes") // 4

    def violation(config: Config) -> str | None:
        limit, need = min(most, file // config.int("threads")), needed(config) + TEMPORARY_REGISTERS
        if need <= limit:
            return None
        return (
            f"a thread keeps {need} values, and has {limit} registers with threads={config['threads']} on "
            f"{target.name}: {way_out}"
        )

    return Constraint("registers", violation)


def row_space(
    target: Target,
    m: int,
    n: int,
    element_bytes: int,
    *,
    weights: int = 1,
    tensors: int = 1,
    sweeps: int = 2,
    reduced: int | None = None,
    splits: bool = False,
) -> SearchSpace:
    """The search space of kernels that sweep over each of m rows of n elements.

    Args:
        target: the target.
        m: number of rows.
        n: elements of a row.
        element_bytes: bytes of an element.
        weights: rows of n elements that all rows share, such as one that multiplies each.
        tensors: inputs of m rows that a thread loads together.
        sweeps: 1 or 2. A row that is used once is not kept.
        reduced: elements of a row that are reduced together, and of which a block has as many; None: all.
        splits: whether kernels can keep the first steps of a row in registers and the rest in shared memory.
            It is offered for rows that neither holds, where asynchronous copies have at least 4 bytes.
    """
    length = n if reduced is None else reduced
    of_row = "n" if length == n else "group"
    warp = target.int("warp.threads")
    is_long = length * element_bytes > target.int("core.memory.shared.block_bytes")
    is_split = splits and is_long and target.kind == "cuda" and n * element_bytes % 4 == 0
    parameters = (
        Parameter("block_m", ROWS, "rows of one block"),
        Parameter("threads", (64, 128, 256, 512, 1024), "threads of a block"),
        Parameter("reduce_threads", (8, 16, 32, 64, 128, 256, 512, 1024), "threads that share a row"),
        Parameter("vector", VECTORS, "elements of one load or store of a thread"),
        Parameter(
            "keep",
            ("registers", "shared", *["both"] * is_split, "global")
            if sweeps > 1
            else ("registers", "global"),
            "where a row is kept between the two sweeps; global: it is read again",
        ),
        Parameter(
            "unroll",
            (*LOADS, *REGISTER_STEPS) if is_split else LOADS,
            "loads of a row by each thread that are in flight together, if it is read twice; with keep=both "
            "vectors of each thread in registers",
        ),
    )

    def parts(config: Config) -> int:
        return -(-length // (config.int("reduce_threads") * config.int("vector")))

    def live_registers(config: Config) -> int:
        rows, vector, keep = rows_of_a_thread(config, "block_m"), config.int("vector"), config["keep"]
        if keep == "both":
            return rows * (config.int("unroll") + 1) * vector * element_bytes // 4
        together = {"registers": parts(config), "shared": 1}.get(str(keep), config.int("unroll"))
        of_all = weights * (1 if keep == "registers" else together)
        return (tensors * rows * together + of_all) * vector * element_bytes // 4 + rows * vector

    def shared_bytes(config: Config) -> int:
        across_warps = config.int("threads") * FLOAT_BYTES if config.int("reduce_threads") > warp else 0
        if config["keep"] not in ("shared", "both"):
            return across_warps
        steps = parts(config) - (config.int("unroll") if config["keep"] == "both" else 0)
        row = steps * config.int("reduce_threads") * config.int("vector")
        return config.int("block_m") * row * element_bytes + across_warps

    constraints = (
        widest_vectors("n", n, element_bytes, VECTORS),
        fits_block(target, bulk_copies=False),
        whole_rows("block_m", MOST_ROWS),
        no_idle_threads("block_m", "m", m, of_row, length, warp),
        Constraint("unroll", _unroll_matters),
        within_row(parts, of_row, length),
        fits_thread(
            target, live_registers, "take more reduce_threads, fewer rows, or keep=shared or keep=global"
        ),
        fits_shared_memory(target, shared_bytes, "lower block_m, or take keep=registers or keep=global"),
    )
    return SearchSpace(parameters, constraints)


def _unroll_matters(config: Config) -> str | None:
    """A row that is kept in one place is loaded at once, whatever `unroll` is."""
    keep, unroll = config["keep"], config.int("unroll")
    if keep == "global" and unroll > LOADS[-1]:
        return f"unroll={unroll} is for keep=both: take unroll={LOADS[-1]}"
    if keep in ("global", "both") or unroll == 1:
        return None
    return (
        f"unroll={config['unroll']} changes nothing with keep={config['keep']}, where a row is loaded at "
        "once: take unroll=1"
    )
