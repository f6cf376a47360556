"""KernelProfile: what a kernel's lowered IR asks of the hardware, in numbers and without the IR.

All quantities are for one block (CTA, workgroup) unless a name says otherwise; a loop's are for one iteration.
The values are plain and picklable: they cross process borders and are kept in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

LAUNCH_AXIS = "t"  # beside x, y and z: the launch position, block (x fastest) + turn * blocks


class Space(StrEnum):
    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"  # per-thread memory that the compiler could not keep in registers


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """Matrix instructions of one kind: `count` for the whole block."""

    instruction: str  # e.g. wgmma.m64n128k16.bf16, mma.m16n8k16.bf16, mfma.16x16x16.bf16
    count: float
    flops: float  # of one instruction, multiply and add counted apart
    shared_bytes: float = 0.0  # operand bytes that one instruction reads from shared memory by itself
    warps: float = 1.0  # warps that issue it together (wgmma: 4)
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True)
class Access:
    """Memory accesses of one kind by one statement, for the whole block.

    `bytes` is what the program asks for. `transactions` is what the memory does for it: 32-byte sectors in
    global memory, wavefronts (one pass over the 32 banks) in shared memory. `instructions` counts warp instructions
    (for a bulk copy: the copies).
    """

    space: Space
    tensor: str  # label of the tensor within this profile; renaming changes no prediction
    write: bool
    mechanism: str  # ld, st, cp_async, tma, ldmatrix, stmatrix, atomic, ...
    bytes: float
    transactions: float
    instructions: float
    vector_bytes: int = 4  # width of one lane's access; bulk copy: contiguous bytes of a row
    asynchronous: bool = False  # completes on a barrier or wait group
    slots: int = 1  # buffers that this access cycles through over iterations
    box_bytes: float = 0.0  # bulk copy: bytes of one copy
    least_inside: float = 1.0  # bulk copy: share of the box inside the tensor, in the block where it hangs over most
    axes: frozenset[str] = frozenset()  # block axes (x, y, z) that its address depends on
    loop_dependent: bool = False  # its address moves with the enclosing loop
    levels: tuple[tuple[float, float], ...] = ()  # CPU: (executions, distinct bytes of one) of each loop around, inside out
    footprint_bytes: float = 0.0  # different bytes among `bytes`: what a cache next to the block would fetch
    # which tile a block touches, where that is no plain product of `axes`: digits (axis, divisor, modulus) that together
    # number it, LAUNCH_AXIS being an axis, too ...
    tile_digits: tuple[tuple[str, int, int], ...] = ()
    tile_ids: tuple[int, ...] = ()  # ... or, where no digits do, its number for each launch position (the first of them)
    turns: int = 1  # tiles that a block touches one after another, as a persistent kernel does


@dataclass(frozen=True, slots=True)
class Work:
    """What straight-line code asks for, loops inside it already multiplied out. Counts of operations are lane
    operations over all threads of the block (divide by the warp width for warp instructions)."""

    matrix: tuple[MatrixWork, ...] = ()
    accesses: tuple[Access, ...] = ()
    vector_ops: float = 0.0  # fp32 add, multiply, fma, min, max, compare, select
    integer_ops: float = 0.0  # address and index arithmetic that is visible in the IR
    convert_ops: float = 0.0
    special_ops: float = 0.0  # exp2, log2, rcp, rsqrt, division's reciprocal, ...
    shuffles: float = 0.0  # lane exchanges
    block_syncs: float = 0.0  # barriers among all threads of the role or block
    barrier_waits: float = 0.0  # waits on mbarriers or copy groups
    matrix_waits: float = 0.0  # points where issued matrix work must have finished
    unknown: Mapping[str, float] = field(default_factory=dict)  # calls that are not understood, by name


@dataclass(frozen=True, slots=True)
class Trips:
    """Iterations of a loop over the blocks of the grid: `per_block` in launch order of the block axes that matter
    (a single number where all blocks agree)."""

    per_block: tuple[float, ...]
    axes: frozenset[str] = frozenset()

    @property
    def mean(self) -> float:
        return sum(self.per_block) / len(self.per_block)

    @property
    def largest(self) -> float:
        return max(self.per_block)

    @property
    def smallest(self) -> float:
        return min(self.per_block)


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a role's program: straight-line code (`trips` of one) or a loop with its per-iteration work."""

    trips: Trips
    work: Work
    pipeline_depth: int = 1  # iterations whose loads may be in flight together, this one included
    is_loop: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """Threads that run the same program: the whole block, or a warp-specialised part of it."""

    name: str  # all | producer | consumer
    threads: int
    phases: tuple[Phase, ...]
    registers_limit: int | None = None  # set by the kernel itself (setmaxnreg)
    local_registers: float = 0.0  # 32-bit registers per thread that live local buffers need at their peak


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory as the kernel walks over it."""

    label: str
    bytes: int  # whole extent as far as the IR states it; 0 where it does not
    element_bytes: int


@dataclass(frozen=True, slots=True)
class Rasterization:
    """Order in which block ids are mapped to tiles: `row` walks panels of `factor` rows column by column, `column` the
    other way, `linear` is x fastest."""

    order: str = "linear"
    factor: int = 1


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What one kernel launch asks of the hardware. Several kernels in one function make several profiles."""

    kind: str  # cuda | hip | cpu
    arch: str
    grid: tuple[int, int, int]
    block_threads: int  # as launched: a warp-specialised kernel has its producer in it
    cluster: int
    shared_bytes: int  # dynamic and static, per block
    roles: tuple[Role, ...]
    tensors: tuple[Tensor, ...]
    rasterization: Rasterization = Rasterization()
    min_blocks_per_core: int = 1
    unknown_calls: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what had to be assumed while reading

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]
