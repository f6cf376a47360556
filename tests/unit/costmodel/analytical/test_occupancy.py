"""Registers of blocks without a producer, compared with those that ptxas gave similar kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.costmodel.analytical.occupancy import (
    TOGETHER_OVERHEAD_REGISTERS,
    occupancy,
    registers_limit,
    registers_needed,
    registers_taken,
)
from tilesight.profile.values import (
    Access,
    KernelProfile,
    MatrixWork,
    Phase,
    Role,
    Space,
    Tensor,
    Trips,
    Work,
)
from tilesight.target.spec import load_target

H200 = load_target("h200")


def block(
    local: float, threads: int, *, instruction: str = "", staged_halves: int = 0, producer: bool = False
) -> KernelProfile:
    """`staged_halves` 2-byte elements a thread move to shared memory by plain loads and stores."""
    matrix = (MatrixWork(instruction, 8, 1e5),) if instruction else ()
    loads = staged_halves * threads
    accesses = (
        Access(Space.GLOBAL, "t0", False, "ld", loads * 2, loads / 16, loads / 32, vector_bytes=2),
        Access(Space.SHARED, "s0", True, "st", loads * 2, loads / 32, loads / 32, vector_bytes=2),
    )
    work = Work(matrix=matrix, accesses=accesses if staged_halves else ())
    roles = [
        Role(
            "consumer" if producer else "all",
            threads,
            (Phase(Trips((8.0,)), work, is_loop=True),),
            local_registers=local,
        )
    ]
    if producer:
        roles.append(Role("producer", 128, (Phase(Trips((8.0,)), Work(), is_loop=True),)))
    return KernelProfile("cuda", "sm_90a", (132, 1, 1), threads, 1, 0, tuple(roles), ())


@pytest.mark.parametrize(
    ("kernel", "ptxas"),
    [
        (block(36, 256), 54),  # gemv: 64 rows, 16 threads each, vectors of 4
        (block(13, 1024), 26),  # rms_norm: a row a block in registers
        (block(64, 256), 80),  # rms_norm: 128 rows, vectors of 8
        (
            block(50, 512, instruction="wgmma.m64n128k16", staged_halves=20),
            110,
        ),  # matmul of odd extents, 192x128x32
        (block(10, 512, instruction="wgmma.m64n64k16", staged_halves=16), 56),  # 64x64x64
        (
            block(66, 512, instruction="wgmma.m64n128k16", staged_halves=48),
            128,
        ),  # 256x128x64: all that there are
        (block(82, 64, instruction="mma.m16n8k16"), 160),  # chunk_state: operands from registers
        (block(28, 128, instruction="mma.m16n8k16"), 109),  # a batched matmul, from registers as well
    ],
)
def test_registers_are_near_those_of_compiled_kernels(kernel: KernelProfile, ptxas: int) -> None:
    assert abs(occupancy(kernel, H200).registers - ptxas) <= 24


def test_loads_in_flight_take_registers_but_never_spill() -> None:
    few, many = (block(66, 512, instruction="wgmma.m64n128k16", staged_halves=n) for n in (0, 256))
    assert occupancy(few, H200).registers < occupancy(many, H200).registers == 128
    assert occupancy(many, H200).spilled == {}


def test_what_straight_code_stages_is_gone_when_the_accumulators_are_live() -> None:
    product, staging = (block(66, 512, instruction="wgmma.m64n128k16", staged_halves=n) for n in (0, 96))
    [role], [staged] = product.roles, staging.roles
    loads = replace(staged.phases[0], is_loop=False, trips=Trips((1.0,)))
    before = replace(product, roles=(replace(role, phases=(loads, *role.phases)),))
    assert occupancy(before, H200).registers == occupancy(product, H200).registers < 128
    assert occupancy(staging, H200).registers == 128


@pytest.mark.parametrize(("branches", "held"), [(0.0, 68.0), (16.0, 68 / 16), (68 / 6, 68.0)])
def test_loads_of_branches_that_stay_are_not_held_together(branches: float, held: float) -> None:
    """A sum of four rows of a table has 68 loads in 16 branches. Loads under predicates are held together."""
    warps = 4
    loads = Access(Space.GLOBAL, "t0", False, "ld", 68 * 512.0, 68 * 16.0, 68.0 * warps)
    work = Work(accesses=(loads,), load_branches=branches * warps)
    role = Role("all", 32 * warps, (Phase(Trips((1.0,)), work),))
    straight = replace(block(0, 128), roles=(role,))
    assert registers_taken(role, straight) == pytest.approx(TOGETHER_OVERHEAD_REGISTERS + held)


@pytest.mark.parametrize(("addresses", "ptxas"), [(16, 114), (32, 236)])
def test_divided_addresses_of_a_loop_take_registers(addresses: int, ptxas: int) -> None:
    """Producers of products of windows of volumes; ptxas reports of two kernels."""
    fed = block(0, 128, producer=True)
    consumer, producer = fed.roles
    work = Work(load_branches=4.0 * addresses, divided_addresses=4.0 * addresses)
    walking = replace(producer, phases=(Phase(Trips((8.0,)), work, is_loop=True),))
    found = occupancy(replace(fed, roles=(consumer, walking)), H200).registers
    assert abs(found - ptxas) <= 12


def test_a_block_with_a_producer_needs_fewest_registers() -> None:
    alone, fed = (
        block(66, 256, instruction="wgmma.m64n128k16", producer=producer) for producer in (False, True)
    )
    assert occupancy(fed, H200).registers < occupancy(alone, H200).registers


def test_accumulators_that_do_not_fit_spill() -> None:
    assert occupancy(block(194, 512, instruction="wgmma.m64n256k16"), H200).spilled["all"] > 60


@pytest.mark.parametrize(("shuffles", "lacking"), [(1024.0, 216), (0.0, 0)])
def test_rows_that_are_stored_after_their_reduction_are_kept_twice(shuffles: float, lacking: int) -> None:
    # rms_norm, 16 rows of a block of 128 threads: ptxas spills 223 registers
    x, weight, y = (
        Access(Space.GLOBAL, tensor, write, "st" if write else "ld", size, size / 32, size / 512, 16)
        for tensor, write, size in (("x", False, 92000.0), ("w", False, 46000.0), ("y", True, 92000.0))
    )
    work = Work(accesses=(x, weight, y), shuffles=shuffles)
    role = Role("all", 128, (Phase(Trips((1.0,)), work),), local_registers=200.0)
    tensors = tuple(Tensor(name, 1 << 20, 2) for name in "xwy")
    found = occupancy(KernelProfile("cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (role,), tensors), H200)
    assert sum(found.spilled.values()) == pytest.approx(lacking, abs=2)


@pytest.mark.parametrize(
    ("order", "lacking"),
    [("st ld exchange", 216), ("st ld exchange ld", 0), ("st exchange ld", 0), ("st exchange", 0)],
)
def test_rows_that_come_back_from_shared_memory_before_their_reduction_are_kept(
    order: str, lacking: int
) -> None:
    size = 92000.0
    loaded, stored = (
        Access(Space.GLOBAL, tensor, write, "st" if write else "ld", size, size / 32, size / 512, 16)
        for tensor, write in (("x", False), ("y", True))
    )
    steps = {
        "st": [Access(Space.SHARED, "rows", True, "st", size, size / 128, size / 512, 16)],
        "ld": [Access(Space.SHARED, "rows", False, "ld", size, size / 128, size / 512, 16)],
        "exchange": [Access(Space.SHARED, "workspace", w, "st" if w else "ld", 512.0, 4, 4) for w in (1, 0)],
    }
    shared = [access for step in order.split() for access in steps[step]]
    work = Work(accesses=(loaded, *shared, stored), shuffles=1024.0)
    role = Role("all", 128, (Phase(Trips((1.0,)), work),), local_registers=200.0)
    tensors = tuple(Tensor(name, 1 << 20, 2) for name in "xy")
    found = occupancy(KernelProfile("cuda", "sm_90a", (132, 1, 1), 128, 1, 0, (role,), tensors), H200)
    assert sum(found.spilled.values()) == pytest.approx(lacking, abs=2)


def test_registers_are_left_for_the_blocks_that_a_kernel_asks_for() -> None:
    """Kernels that move registers between roles are launched with all that there are for one block."""
    profile = block(92, 128, instruction="wgmma.m64n64k16", producer=True)
    consumer, producer = profile.roles
    moved = replace(profile, block_threads=256, roles=(replace(consumer, registers_limit=232), producer))
    assert occupancy(moved, H200).blocks == 1
    two = occupancy(replace(moved, min_blocks_per_core=2), H200)
    assert (two.blocks, two.registers) == (2, 128)
    assert not two.spilled  # the consumers get those of the producer


def test_what_the_compiler_ignores_takes_no_registers() -> None:
    """ptxas ignores launch bounds of more threads than a core holds, and HIP's compiler never sees them."""
    plain = block(64, 512, instruction="wgmma.m64n128k16")
    assert registers_limit(replace(plain, min_blocks_per_core=2), H200) == 64
    assert registers_limit(replace(plain, min_blocks_per_core=8), H200) == registers_limit(plain, H200)
    mi300x = load_target("mi300x")
    hip = replace(plain, kind="hip", arch="gfx942")
    assert registers_limit(replace(hip, min_blocks_per_core=2), mi300x) == registers_limit(hip, mi300x)


def row_kernel(numbers: int, threads: int, *, special: float = 1.0, loads: int = 1) -> KernelProfile:
    """Straight code that loads `numbers` of two bytes a thread, reduces rows of them, and stores them.

    `special`: special functions a number. `loads`: how often each number is loaded.
    """
    size = 2.0 * numbers * threads
    read, stored = (
        Access(
            Space.GLOBAL, tensor, write, "st" if write else "ld", size, size / 32, size / 512, 16,
            footprint_bytes=size,
        )
        for tensor, write in (("x", False), ("y", True))
    )  # fmt: skip
    work = Work(accesses=(*[read] * loads, stored), shuffles=1024.0, special_ops=special * numbers * threads)
    role = Role("all", threads, (Phase(Trips((1.0,)), work),), local_registers=numbers / 2)
    tensors = tuple(Tensor(name, 1 << 30, 2) for name in "xy")
    return KernelProfile("cuda", "sm_90a", (4096, 1, 1), threads, 1, 0, (role,), tensors)


def row_loop(numbers: int, *, special: float = 1.0, staged: bool = False) -> KernelProfile:
    """A loop that loads `numbers` of two bytes a thread in each iteration, as an online softmax."""
    size = 2.0 * numbers * 128
    read = Access(
        Space.GLOBAL, "x", False, "ld", size, size / 32, size / 512, 16,
        loop_dependent=True, footprint_bytes=size,
    )  # fmt: skip
    copied = Access(Space.SHARED, "s", True, "st", size, size / 128, size / 512, 16)
    work = Work(
        accesses=(read, copied) if staged else (read,),
        special_ops=special * numbers * 128,
        vector_ops=4.0 * numbers * 128,
    )
    role = Role("all", 128, (Phase(Trips((40.0,)), work, is_loop=True),), local_registers=numbers / 2)
    return KernelProfile("cuda", "sm_90a", (4096, 1, 1), 128, 1, 0, (role,), (Tensor("x", 1 << 30, 2),))


@pytest.mark.parametrize(("numbers", "ptxas"), [(33, 52), (71, 96), (128, 153)])
def test_numbers_that_go_through_special_functions_later_are_kept_in_32_bits(
    numbers: int, ptxas: int
) -> None:
    """Sweeps of softmax over `numbers` at once; ptxas reports of 36, 18 and 6 kernels."""
    profile = row_loop(numbers)
    assert abs(registers_taken(profile.roles[0], profile) - ptxas) <= 8
    assert occupancy(row_loop(numbers, special=0.01), H200).registers < ptxas - 8  # a root for each row
    staged = row_loop(numbers, staged=True)  # used when they come back from shared memory
    assert occupancy(staged, H200).registers < ptxas - 8


def test_few_such_numbers_do_not_hide_large_buffers() -> None:
    loop = row_loop(1)
    [role] = loop.roles
    large = replace(loop, roles=(replace(role, local_registers=450.0),))
    assert registers_needed(large.roles[0], large) > 200


def test_rows_that_are_stored_after_a_softmax_take_registers_twice_if_there_are_enough() -> None:
    fits, narrow = row_kernel(64, 128), row_kernel(64, 640)
    assert abs(occupancy(fits, H200).registers - 131) <= 8  # ptxas
    assert occupancy(narrow, H200).registers == registers_limit(narrow, H200) == 96
    assert not occupancy(narrow, H200).spilled  # one copy fits
    # two rows of 32000, 250 numbers a thread: ptxas spills 153 registers
    assert sum(occupancy(row_kernel(250, 128), H200).spilled.values()) == pytest.approx(190, abs=1)


def test_rows_that_are_loaded_twice_are_not_kept() -> None:
    once, twice = row_kernel(64, 1024), row_kernel(64, 1024, loads=2)
    assert occupancy(once, H200).spilled
    assert not occupancy(twice, H200).spilled


def test_numbers_that_an_iteration_loads_twice_are_not_kept() -> None:
    """A softmax whose loop over parts of a row has a sum and then the quotients."""
    loop = row_loop(128)
    [role] = loop.roles
    [phase] = role.phases
    twice = replace(phase, work=replace(phase.work, accesses=phase.work.accesses * 2))
    again = replace(loop, roles=(replace(role, phases=(twice,)),))
    assert registers_needed(again.roles[0], again) < registers_needed(role, loop) - 64
