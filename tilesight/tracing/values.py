"""What is traced of a kernel: where its source has stamps, and the times that these stamps mean."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32  # threads


@dataclass(frozen=True, slots=True)
class StampedLoop:
    """A loop in the source of a kernel whose iterations are stamped.

    Attributes:
        number: Of all stamped loops of its kernel, in the order of the text.
        outer: The number of the stamped loop around it; None: there is none.
        loads: Whether its body issues copies that run by themselves (TMA, cp.async).
        computes: Whether its body has matrix instructions.
        overlaps: Nothing in its body waits, so the compiler may overlap its iterations, and stamps would keep
            it from that. Only the whole loop is stamped, and its iterations are counted.
    """

    number: int
    outer: int | None
    loads: bool
    computes: bool
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class StampedKernel:
    """A kernel with stamps, as it is launched.

    Attributes:
        function: Its name in the source.
        grid: Number of blocks along x, y and z.
        threads: Of a block.
        loops: The stamped loops.
    """

    function: str
    grid: tuple[int, int, int]
    threads: int
    loops: tuple[StampedLoop, ...]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // WARP)


@dataclass(frozen=True, slots=True)
class LoopRun:
    """One execution of a loop by one warp, in microseconds since the first block began.

    `starts` are those of its iterations, or of the first one of a loop whose iterations overlap; `end_us` is
    None if there was no room for all stamps. `count` is the number of iterations.
    """

    loop: int
    starts: tuple[float, ...]
    end_us: float | None
    count: int

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """Begin and end of each iteration, or of the whole loop if its iterations overlap."""
        ends = (*self.starts[1:], *(() if self.end_us is None else (self.end_us,)))
        return tuple(zip(self.starts, ends, strict=False))


@dataclass(frozen=True, slots=True)
class WarpTrace:
    """The stamps of one warp of a block."""

    warp: int
    end_us: float
    runs: tuple[LoopRun, ...]


@dataclass(frozen=True, slots=True)
class BlockTime:
    """When a block ran, and on which core."""

    block: int
    core: int
    start_us: float
    end_us: float

    @property
    def us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """A block whose warps stamped their iterations."""

    time: BlockTime
    warps: tuple[WarpTrace, ...]


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """One launch of a stamped kernel.

    Attributes:
        kernel: The kernel.
        blocks: The times of all blocks, or of the first ones of a large grid.
        sampled: Blocks with stamps of iterations, in order.
        clock_mhz: Of the cores while it ran, from both clocks of the chip.
        timer_ns: Resolution of the clock that all cores share.
        is_cut: Whether some warps had no room for all their stamps.
    """

    kernel: StampedKernel
    blocks: tuple[BlockTime, ...]
    sampled: tuple[BlockTrace, ...]
    clock_mhz: float
    timer_ns: float
    is_cut: bool

    @property
    def us(self) -> float:
        """From the start of the first block to the end of the last one."""
        return max(block.end_us for block in self.blocks)
