"""The memory that a stamped kernel writes to: 32-bit words, a row for each block, then the stamps of warps.

A block's row has its start (time of the chip in ns, low and high word; cycles of its core; number of its
core), then for each warp its end (time, cycles, place after its last stamp). A stamp is one word: the cycles
of the core, of which it has the low 26 bits, and a code. After the end of a loop whose iterations overlap
there is one more word, the number of its iterations. The first stamp of a warp is never used: a place
whose low bits are all 0 means "no room".
"""

from __future__ import annotations

import math

from .values import StampedKernel

RECORDS = 8192  # stamps of one warp, a power of two
SAMPLED_BLOCKS = 16  # at least, whose iterations are stamped, if there are so many
MOST_BLOCKS = 65536  # that have a row
START_WORDS, END_WORDS = 4, 4
CODES = 64  # of stamps
MOST_LOOPS = CODES // 2  # of a kernel, that have codes


def rows(kernel: StampedKernel) -> int:
    """Blocks that have a row: the first ones."""
    return min(kernel.blocks, MOST_BLOCKS)


def row_words(kernel: StampedKernel) -> int:
    return START_WORDS + END_WORDS * kernel.warps


def stride(kernel: StampedKernel) -> int:
    """Of how many blocks one is sampled.

    It has no divisor in common with the grid: otherwise all sampled blocks would have the same place along
    an axis, and in causal attention the same length.
    """
    found = max(1, rows(kernel) // SAMPLED_BLOCKS)
    while math.gcd(found, kernel.blocks) > 1:
        found += 1
    return found


def sampled(kernel: StampedKernel) -> range:
    """The sampled blocks."""
    step = stride(kernel)
    return range(step // 2, rows(kernel), step)


def first_record(kernel: StampedKernel) -> int:
    """Place of the first stamp, a multiple of `RECORDS`, above 0."""
    return RECORDS * max(1, -(-rows(kernel) * row_words(kernel) // RECORDS))


def words(kernel: StampedKernel) -> int:
    """Size of the memory of one launch."""
    return first_record(kernel) + len(sampled(kernel)) * kernel.warps * RECORDS


def begin_code(loop: int) -> int:
    """The code of a stamp at the begin of an iteration."""
    return 2 * loop


def end_code(loop: int) -> int:
    """The code of the stamp after a loop."""
    return 2 * loop + 1
