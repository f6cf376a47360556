"""Rules for kernels that reduce rows: `reduce_threads` neighbouring threads of a block walk along each row together.

A block of `threads` threads works on threads / reduce_threads rows at the same time, on `block_<dimension>` in all.
"""

from __future__ import annotations

from collections.abc import Callable

from ..space import Config, Constraint
from ..target import Target

MIN_REDUCE_THREADS = 8  # fewer leave each 128-byte line of a row to several loads
MIN_THREADS = 64
TEMPORARY_REGISTERS = 32  # of a thread: addresses, conditions and values on their way


def groups(config: Config) -> int:
    """Rows that the block works on at the same time; at least one, so that every rule can be asked of any config."""
    return max(1, config.int("threads") // config.int("reduce_threads"))


def rows_of_a_thread(config: Config, block: str) -> int:
    return max(1, config.int(block) // groups(config))


def whole_rows(block: str, most: int) -> Constraint:
    """The threads divide into whole groups, and the block into whole rows of a group: one to `most` of each thread."""

    def violation(config: Config) -> str | None:
        threads, lanes, rows = config.int("threads"), config.int("reduce_threads"), config.int(block)
        if lanes > threads:
            return f"reduce_threads={lanes} exceeds threads={threads}: take at most reduce_threads={threads}"
        together = groups(config)
        if rows % together == 0 and rows <= most * together:
            return None
        few = f"{block}={rows} is not a multiple of" if rows % together else f"{block}={rows} is more than {most} times"
        legal = ", ".join(str(together * 2**i) for i in range(most.bit_length()))
        return f"{few} the {together} rows that {threads} threads work on at the same time, {lanes} on each: take {block}={legal}"

    return Constraint("whole rows", violation)


def no_idle_threads(block: str, rows_name: str, rows: int, length_name: str, length: int, warp: int) -> Constraint:
    """Half of the threads along a row, half of the groups, or half of the rows of a thread would do."""

    def violation(config: Config) -> str | None:
        threads, lanes, vector = config.int("threads"), config.int("reduce_threads"), config.int("vector")
        if lanes > MIN_REDUCE_THREADS and lanes // 2 * vector >= length:
            return f"reduce_threads={lanes} is wasted on {length_name}={length}: take reduce_threads={lanes // 2}"
        if threads > max(MIN_THREADS, warp) and threads > lanes and threads // 2 // lanes >= rows:
            return f"threads={threads} is wasted on {rows_name}={rows} with reduce_threads={lanes}: take threads={threads // 2}"
        if config.int(block) > groups(config) and config.int(block) // 2 >= rows:
            return f"{block}={config[block]} is wasted on {rows_name}={rows}: take {block}={config.int(block) // 2}"
        return None

    return Constraint("idle threads", violation, is_waste=True)


def widest_vectors(length_name: str, length: int, element_bytes: int, values: tuple[int, ...]) -> Constraint:
    """Vectors start at multiples of their size in every row, and are the widest that do, or half of those.

    A memory instruction moves at most 16 bytes.
    """
    legal = [v for v in values if length % v == 0 and v * element_bytes <= 16][-2:]
    legal = [v for v in legal if v * element_bytes >= 4] or legal  # 2 bytes at a time only where rows allow nothing else
    nearest = ", ".join(map(str, legal))

    def violation(config: Config) -> str | None:
        vector = config.int("vector")
        if length % vector:
            return f"vector={vector} must divide {length_name}={length}; nearest legal values: {nearest}"
        if vector not in legal:
            return (
                f"vector={vector} moves {vector * element_bytes} bytes at a time, and {length_name}={length} allows "
                f"{legal[-1] * element_bytes}; nearest legal values: {nearest}"
            )
        return None

    return Constraint("vector width", violation)


def within_row(parts: Callable[[Config], int], length_name: str, length: int) -> Constraint:
    """Parts of a row that are loaded together exist."""

    def violation(config: Config) -> str | None:
        unroll, needed = config.int("unroll"), parts(config)
        if unroll == 1 or unroll // 2 < needed:
            return None
        step = config.int("reduce_threads") * config.int("vector")
        return f"unroll={unroll} is wasted on {length_name}={length}, which is {needed} steps of {step}: take unroll={unroll // 2}"

    return Constraint("unroll within row", violation)


def fits_thread(target: Target, needed: Callable[[Config], int], way_out: str) -> Constraint:
    """What a thread keeps must fit into its registers."""
    most, file = target.int("thread.max_registers"), target.int("core.memory.registers.bytes") // 4

    def violation(config: Config) -> str | None:
        limit, need = min(most, file // config.int("threads")), needed(config) + TEMPORARY_REGISTERS
        if need <= limit:
            return None
        return f"a thread keeps {need} values, and has {limit} registers with threads={config['threads']} on {target.name}: {way_out}"

    return Constraint("registers", violation)
