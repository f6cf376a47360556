"""`KernelProfile`: the work that a kernel asks of the hardware, as numbers read from its IR.

All quantities are for one block (CTA, workgroup) unless a name says otherwise; a loop's are for one
iteration. The values are plain and picklable: processes exchange them, and the database stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..problem.rasterization import Rasterization

LAUNCH_AXIS = "t"  # beside x, y and z: the launch position, block (x fastest) + turn * blocks


class Space(StrEnum):
    """Memory spaces."""

    GLOBAL = "global"
    SHARED = "shared"
    LOCAL = "local"  # per-thread memory that does not fit in registers


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """Matrix instructions of one kind: `count` for the whole block."""

    instruction: str  # e.g. wgmma.m64n128k16.bf16, mma.m16n8k16.bf16, mfma.16x16x16.bf16
    count: float
    flops: float  # of one instruction, multiply and add counted apart
    shared_bytes: float = 0.0  # operand bytes that one instruction reads directly from shared memory
    warps: float = 1.0  # warps that issue it together (wgmma: 4)
    dtype: str = "bfloat16"


WORKSPACE = "workspace"  # label of the shared memory through which the threads of a block exchange values
CLUSTER = "_cluster"  # ends the mechanism of accesses to the shared memory of any block of a cluster


@dataclass(frozen=True, slots=True)
class Access:
    """Memory accesses of one kind by one statement, for the whole block.

    `bytes` are the bytes that the program requests. `transactions` are the operations of the memory: 32-byte
    sectors in global memory, wavefronts (one pass over the 32 banks) in shared memory. `instructions` are
    warp instructions, for a bulk copy the number of copies.
    """

    space: Space
    tensor: str  # label of the tensor within this profile; predictions do not depend on it
    write: bool
    mechanism: str  # ld, st, cp_async, tma, ldmatrix, stmatrix, atomic, ld_cluster (see `CLUSTER`), ...
    bytes: float
    transactions: float
    instructions: float
    vector_bytes: int = 4  # bytes that one lane accesses; bulk copy: contiguous bytes of a row
    asynchronous: bool = False  # completes on a barrier or wait group
    slots: int = 1  # buffers that this access cycles through over iterations
    box_bytes: float = 0.0  # bulk copy: bytes of one copy
    least_inside: float = 1.0  # bulk copy: least share of the box inside the tensor, over the blocks
    axes: frozenset[str] = frozenset()  # block axes (x, y, z) that its address depends on
    loop_dependent: bool = False  # its address changes with the enclosing loop
    # CPU: (executions, bytes of the distinct lines of one execution) of each enclosing loop, innermost first
    levels: tuple[tuple[float, float], ...] = ()
    gaps: tuple[float, ...] = ()  # CPU: bytes from one of these lines to the next, by loop; 0: neighbours
    footprint_bytes: float = 0.0  # distinct bytes among `bytes`: the traffic of a cache next to the block
    # contiguous bytes at each place that loaded data chooses; 0 if the address depends on no loaded data
    row_bytes: float = 0.0
    # The tile that a block accesses, if it is not the product of `axes`: the digits (axis, divisor, modulus)
    # of its number, with LAUNCH_AXIS as a possible axis ...
    tile_digits: tuple[tuple[str, int, int], ...] = ()
    tile_ids: tuple[int, ...] = ()  # ... or, if there are no digits, its number at the first launch positions
    turns: int = 1  # tiles that a block accesses one after another, as in a persistent kernel
    # loads: share of its sectors whose neighbour in the same 64 bytes no lane of the instruction touches; 0
    # where most have their neighbour
    alone_share: float = 0.0
    # contiguous bytes that this block and its neighbours in launch order access together; 0 if unknown
    run_bytes: float = 0.0
    # of `run_bytes`, those of this block alone, if they are fewer and less than 256; else 0
    own_run_bytes: float = 0.0
    # bytes of the different sectors among `transactions`, if the next instructions touch them again; else 0
    sector_bytes: float = 0.0
    # share of the warps of its role that execute it, if a condition on the thread chooses them
    warp_share: float = 1.0
    # shared memory: instructions of a warp one after another, all loads or all stores
    in_row: float = 1.0
    # plain loads: bytes from the place of a lane to its next one, in the innermost loop that moves it, if a
    # sector has several of them; else 0
    step_bytes: float = 0.0
    # the memory of a peer: how its network moves the bytes (`target.network.MECHANISMS`)
    peer: str = ""
    # plain stores: 128-byte lines that its instructions touch; loads: 0, or what the analytical model finds
    lines: float = 0.0
    is_float: bool = False  # atomics: of floating-point numbers, which take L2 longer


@dataclass(frozen=True, slots=True)
class Work:
    """The work of straight-line code, with inner loops multiplied out.

    Operations are counted per lane over all threads of the block, with lanes that a condition leaves idle.
    Divided by the warp width they are warp instructions.
    """

    matrix: tuple[MatrixWork, ...] = ()
    accesses: tuple[Access, ...] = ()
    vector_ops: float = 0.0  # fp32 add, multiply, fma, min, max, compare, select
    integer_ops: float = 0.0  # address and index arithmetic in the IR
    convert_ops: float = 0.0
    special_ops: float = 0.0  # exp2, log2, rcp, rsqrt, division's reciprocal, ...
    shuffles: float = 0.0  # lane exchanges
    block_syncs: float = 0.0  # barriers among all threads of the role or block
    barrier_waits: float = 0.0  # waits on mbarriers or copy groups
    matrix_waits: float = 0.0  # points where issued matrix work must have finished
    chained_ops: float = 0.0  # CPU: operations that each need the result of the one before, as in a sum
    loop_entries: float = 0.0  # CPU: how often innermost loops begin
    unknown: Mapping[str, float] = field(default_factory=dict)  # executions of unknown calls, by name
    load_branches: float = 0.0  # branches of warps that each wait for their loads from device memory
    divided_addresses: float = 0.0  # of such branches of warps, those whose addresses need divisions first
    # waits of warps for elements of arrays in local memory, which no load of a later iteration passes
    local_waits: float = 0.0
    near_local_waits: float = 0.0  # of these, for elements that the iteration before touched
    # branches of warps that each wait for a value from shared memory, or for an element of a local array
    shared_branches: float = 0.0
    # executions by warps of exact divisions and square roots, and of the special functions in their operands:
    # each has a branch to a routine for rare values, so they follow each other
    routine_calls: float = 0.0
    exchange_steps: float = 0.0  # of reductions over threads, each of which waits for the step before
    # of `vector_ops`, those that compare or select, and those of float64: fewer lanes do that
    selections: float = 0.0
    matrix_in_flight: float = 0.0  # share of `matrix` beside which the warps that issued it go on


@dataclass(frozen=True, slots=True)
class Trips:
    """Iterations of a loop, block by block.

    `per_block` lists the blocks along the axes that the iterations depend on, in launch order. It is a single
    number if all blocks agree.
    """

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
    """A part of a role's program: straight-line code (`trips` of one) or a loop with work per iteration."""

    trips: Trips
    work: Work
    pipeline_depth: int = 1  # iterations whose loads may be in flight together, including the current one
    is_loop: bool = False
    # Iterations from issuing a group of copies (cp.async) to waiting for it, a part of one where several
    # products wait for groups of their own; None: `pipeline_depth` - 1.
    copies_ahead: float | None = None
    # Of a loop that waits for bulk copies: longest share of an iteration, by its matrix operations, from the
    # wait for a copy to the release of its buffer; None: not known, or all of it.
    held_share: float | None = None
    # Instructions of a warp in the code of a loop's iteration, without those of addresses: inner loops that
    # stay loops stand in it once, unrolled ones completely. 0 if they are few (`phase_counts.LARGE_CODE`).
    code_instructions: float = 0.0

    def with_accesses(self, change: Callable[[Access], Access]) -> Phase:
        """The phase with each access changed."""
        accesses = tuple(map(change, self.work.accesses))
        return replace(self, work=replace(self.work, accesses=accesses))


@dataclass(frozen=True, slots=True)
class Role:
    """Threads that run the same program: the whole block, or a warp-specialised part of it."""

    name: str  # all | producer | consumer
    threads: int
    phases: tuple[Phase, ...]
    registers_limit: int | None = None  # set by the kernel (setmaxnreg)
    local_registers: float = 0.0  # peak of the 32-bit registers per thread that live local buffers need
    # the part of them in which matrix instructions accumulate; 0 without any, or if it was not counted
    accumulator_registers: float = 0.0
    # the part of `local_registers` that only code around the loops with matrix instructions needs
    outside_registers: float = 0.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory."""

    label: str
    bytes: int  # whole extent; 0 if the IR does not state it
    element_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryCollective:
    """A collective of the vendor's library, in place of a kernel.

    Attributes:
        name: as `predict_collective` takes it.
        size_bytes: of the whole tensor.
    """

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EngineCopies:
    """What copy engines bring from this device to its peers while a kernel runs: to one peer after the other.

    Attributes:
        peers: devices that get the same chunks, each with a flag.
        chunks: of one peer.
        chunk_bytes: bytes of a chunk.
    """

    peers: int
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The work of one kernel launch. A function with several kernels has several profiles.

    Of several devices it is the work of rank 0, from which that of other ranks differs in its order only.
    """

    kind: str  # cuda | hip | cpu
    arch: str
    grid: tuple[int, int, int]
    block_threads: int  # as launched, including the producer of a warp-specialised kernel
    cluster: int
    shared_bytes: int  # dynamic and static, per block
    roles: tuple[Role, ...]
    tensors: tuple[Tensor, ...]
    rasterization: Rasterization = field(default_factory=Rasterization)
    unknown_calls: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # assumptions made while reading the IR
    meetings: int = 0  # barriers of all ranks
    waits: int = 0  # places where blocks wait for rows that peers send to their product meanwhile
    copies: EngineCopies | None = None  # beside it, of other devices the same, for which it waits
    collective: LibraryCollective | None = None  # then there is no other work
    min_blocks_per_core: int = 1  # resident blocks for which the compiler leaves registers

    @property
    def is_exchange(self) -> bool:
        """Whether it is a barrier of ranks or a collective of the library: it has no work on cores."""
        return bool(self.meetings or self.collective)

    @property
    def communicates(self) -> bool:
        """Whether it needs the network between devices."""
        return bool(
            self.is_exchange
            or self.copies
            or any(a.peer for role in self.roles for phase in role.phases for a in phase.work.accesses)
        )

    def with_phases(self, change: Callable[[Phase], Phase]) -> KernelProfile:
        """The profile with each phase of each role changed."""
        roles = tuple(replace(role, phases=tuple(map(change, role.phases))) for role in self.roles)
        return replace(self, roles=roles)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]
