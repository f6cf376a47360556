"""Profiles of kernels whose amount of work depends on data that the caller states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.costmodel import data_kernels, gather_kernels
from tilesight.api.foreign_kernel import ForeignKernel, profiles_of
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.costmodel.extract import read_profiles
from tilesight.errors import InputError, WorkloadError
from tilesight.lowering.lower import lower
from tilesight.problem.run_time_data import RunTimeData
from tilesight.profile.values import KernelProfile, Space
from tilesight.target.spec import load_target

H100 = load_target("h100")


def profile(prim_func: Any, **facts: Any) -> KernelProfile:
    (found,) = profiles_of(ForeignKernel("kernel", prim_func), H100, RunTimeFacts(**facts))
    return found


def matrix_trips(kernel: KernelProfile) -> list[float]:
    """Iterations with matrix instructions, for every block of the axes that they depend on."""
    return [t for role in kernel.roles for p in role.phases if p.work.matrix for t in p.trips.per_block]


def loop_trips(kernel: KernelProfile) -> tuple[float, ...]:
    """Iterations of the longest loop, by block."""
    loops = [p.trips for role in kernel.roles for p in role.phases if p.is_loop]
    return max(loops, key=lambda trips: trips.largest).per_block


def test_the_trips_of_a_loop_follow_from_a_table_of_offsets() -> None:
    lengths = [64, 640, 1, 0, 6400, 100, 64 * 33, 5]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype("int32")
    kernel = profile(data_kernels.sequences(8, int(starts[-1])), inputs={"Starts": starts})
    assert loop_trips(kernel) == tuple(float(-(-length // 64)) for length in lengths)
    assert not any("depends on" in note for note in kernel.notes)


def test_without_inputs_the_sequences_are_taken_as_equally_long() -> None:
    """The roles agree: the producer of a pipelined copy, and the consumer, which reads no tensor."""
    kernel = profile(data_kernels.sequences(8, 64 * 9 * 20))
    trips = {p.trips.per_block for role in kernel.roles for p in role.phases if p.is_loop}
    assert trips == {(20.0,)}
    assert any("taken for 20 iterations, as if the data divided its tensors" in note for note in kernel.notes)


def test_blocks_differ_in_the_iterations_that_work() -> None:
    """Of 96 rows each of 8 blocks skips 12 more than the block before; all of them pass the barriers."""
    marks = (np.arange(96)[:, None] >= 12 * np.arange(8)).astype("int32")
    kernel = profile(data_kernels.marked_blocks(96, 8), inputs={"Marks": marks})
    (role,) = kernel.roles
    working, idle = (
        [p for p in role.phases if p.is_loop and bool(p.work.vector_ops) == works] for works in (True, False)
    )
    assert [p.trips.per_block for p in working] == [tuple(96.0 - 12 * b for b in range(8))]
    assert [p.trips.per_block for p in idle] == [tuple(12.0 * b for b in range(8))]
    assert [p.work.block_syncs for p in (*working, *idle)] == [2, 2]
    assert len({p.pipeline_depth for p in (*working, *idle)}) == 1


def test_iterations_whose_scalars_count_stay_one_phase() -> None:
    marks = np.ones((96, 8), dtype="int32")
    marks[:, :4] = 0
    kernel = profile(data_kernels.marked_blocks(96, 8, counted=True), inputs={"Marks": marks})
    assert [p.trips.per_block for r in kernel.roles for p in r.phases if p.is_loop] == [(96.0,)]


def test_a_variable_that_depends_on_data_can_be_stated() -> None:
    kernel = profile(data_kernels.sequences(8, 40960), dims="kv_len=512")
    assert loop_trips(kernel) == (8.0,)
    assert not any("a loop's extent depends on" in note for note in kernel.notes)


@pytest.mark.parametrize(
    ("ends", "groups"),
    [
        ([256, 512, 768, 1024], [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4),
        ([64, 64, 128, 1024], [0, 2] + [3] * 14),
        ([4096] * 4, [0] * 16),
    ],
)
def test_the_group_of_a_tile_is_found_as_the_kernel_finds_it(ends: list[int], groups: list[int]) -> None:
    """The blocks of a group share the tiles of its right side."""
    kernel = profile(data_kernels.grouped(4, 1024, 512), inputs={"Ends": np.array(ends, dtype="int32")})
    assert not kernel.notes
    (right,) = (
        a for role in kernel.roles for p in role.phases for a in p.work.accesses
        if a.tensor == "t1" and a.mechanism == "tma"
    )  # fmt: skip
    blocks = np.arange(16 * 8)
    if right.tile_ids:
        tiles = np.array(right.tile_ids)
    else:
        tiles = sum(blocks // (8 if axis == "y" else 1) // divisor % modulus * 64 ** (axis == "y")
                    for axis, divisor, modulus in right.tile_digits)  # fmt: skip
    same = tiles[:, None] == tiles[None, :]
    expected = np.array(groups)[blocks // 8] * 8 + blocks % 8
    assert (same == (expected[:, None] == expected[None, :])).all()


def test_without_inputs_the_group_is_chosen_by_data() -> None:
    kernel = profile(data_kernels.grouped(4, 1024, 512))
    assert any("loaded data chooses which part of B is read" in note for note in kernel.notes)


@pytest.mark.parametrize("sizes", [[256] * 4, [64, 0, 640, 1], [0] * 4, [1024, 0, 0, 0]])
def test_persistent_blocks_find_their_tiles(sizes: list[int]) -> None:
    """Prefix sums in shared memory and a binary search: the matrix work is that of the groups' tiles."""
    tiles = sum(-(-size // 64) for size in sizes)
    kernel = profile(
        data_kernels.scheduled(4, 2048, 512, blocks=8, turns=4),
        inputs={"Sizes": np.array(sizes, dtype="int32")},
    )
    trips = matrix_trips(kernel)
    assert 8 * sum(trips) / max(1, len(trips)) == pytest.approx(8 * tiles)
    assert not any("branch" in note or "chooses" in note for note in kernel.notes)


def test_page_numbers_that_go_through_shared_memory_are_known() -> None:
    counts = np.array([3, 0, 16, 7], dtype="int32")
    numbers = np.random.default_rng(0).permutation(64).reshape(4, 16).astype("int32")
    kernel = profile(data_kernels.paged(4, 64, 16), inputs={"Pages": numbers, "Counts": counts})
    assert loop_trips(kernel) == (3.0, 0.0, 16.0, 7.0)
    assert not kernel.notes
    unknown = profile(data_kernels.paged(4, 64, 16), inputs={"Counts": counts})
    assert any("chooses which part of X" in note for note in unknown.notes)


def test_unknown_places_of_a_known_table_have_its_mean() -> None:
    """A buffer with one unknown element stays unknown when the kernel stores a known one to it."""
    given = {"Counts": np.array([3, 1, 16, 8], dtype="int32"), "Order": np.arange(4, dtype="int32")}
    function = data_kernels.searched(4, 16)
    (kernel,) = read_profiles(lower(function, H100, only_read=True), H100, RunTimeData(contents=given))
    assert loop_trips(kernel) == (7.0,)
    assert any("taken for 7 iterations, the mean by the given data" in note for note in kernel.notes)
    executed = profile(function, inputs=given)
    assert loop_trips(executed) == (7.0,)
    assert any("was found by executing 4 of 4 blocks" in note for note in executed.notes)
    without = profile(data_kernels.searched(4, 16))
    assert loop_trips(without) == (16.0,)
    assert any("as if the data divided its tensors evenly" in note for note in without.notes)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_mask_of_tiles_gives_the_share_of_the_blocks(share: float) -> None:
    mask = np.zeros((16, 8), dtype="int8")
    mask.reshape(-1)[: round(share * mask.size)] = 1
    kernel = profile(data_kernels.masked(1024, 512), inputs=[None, None, mask])
    trips = matrix_trips(kernel)
    assert sum(trips) / max(1, len(trips)) == pytest.approx(8 * share)


def test_a_density_takes_the_place_of_a_mask() -> None:
    kernel = profile(data_kernels.masked(1024, 512), density=0.25)
    assert matrix_trips(kernel) == [2.0]
    assert any("taken as entered in 25% of the cases" in note for note in kernel.notes)
    always = profile(data_kernels.masked(1024, 512))
    assert matrix_trips(always) == [8.0]
    assert any("taken as always entered" in note for note in always.notes)


@pytest.mark.parametrize(("density", "entered"), [(None, 0.5), (0.2, 0.2)])
def test_the_shares_of_two_branches_add_up_to_one(density: float | None, entered: float) -> None:
    """The known part of the condition has its own share, and the data decides for the other blocks."""
    kernel = profile(data_kernels.one_of_two(8, 2, 512), density=density)
    first, second = (
        [t / 8 for t in p.trips.per_block] for r in kernel.roles for p in r.phases if p.work.matrix
    )
    assert first == pytest.approx([1.0] * 2 + [entered] * 6)
    assert second == pytest.approx([0.0] * 2 + [1 - entered] * 6)
    words = "20% of the cases" if density else "as often as the other one"
    assert any(words in note for note in kernel.notes)


@pytest.mark.parametrize("zeros_first", [False, True])
@pytest.mark.parametrize(("density", "trips"), [(None, [32.0]), (0.75, [24.0, 8.0])])
def test_the_branch_that_loads_is_entered(
    density: float | None, trips: list[float], *, zeros_first: bool
) -> None:
    """The other one writes zeros to a row without weight, which is rare unless a density says otherwise."""
    if zeros_first and density is not None:
        density = 1 - density  # a density is that of the first branch
    kernel = profile(data_kernels.row_or_zeros(512, 16384, zeros_first=zeros_first), density=density)
    found = [t for role in kernel.roles for p in role.phases if p.is_loop for t in p.trips.per_block]
    assert sorted(found, reverse=True) == trips
    words = "taken as always entered" if density is None else "of the cases"
    assert any(words in note for note in kernel.notes)


def test_a_branch_with_products_is_not_taken_for_an_empty_row() -> None:
    """It loads nothing, but the other one does: both are entered as often as each other."""
    assert matrix_trips(profile(data_kernels.product_or_copy(8, 16))) == [8.0]


def test_a_table_of_indices_says_where_rows_lie() -> None:
    """Consecutive elements are coalesced, scattered ones are not."""

    def sectors(index: Any) -> float:
        kernel = profile(gather_kernels.elements(1 << 20, 1 << 16), inputs={"Index": index.astype("int32")})
        reads = [
            a
            for role in kernel.roles
            for p in role.phases
            for a in p.work.accesses
            if a.space is Space.GLOBAL and not a.write and a.tensor == "t2"
        ]
        assert not any("chooses" in note for note in kernel.notes)
        return sum(a.transactions for a in reads)

    order = np.arange(1 << 16)
    assert sectors(order) == 1024 * 4 / 32
    assert sectors(order * 16) == 1024
    assert sectors(order * 0) == 1024 / 32


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"density": 1.5}, r"density=1.5 must be a number in 0 \.\. 1"),
        ({"density": "x"}, r"density=x must be a number in 0 \.\. 1"),
        ({"dims": "kv_le=5"}, "unknown run-time size or variable of kernel 'kv_le'; did you mean kv_len"),
        ({"dims": "kv_len=-1"}, "kv_len=-1 must be a whole number in 0"),
        ({"inputs": {"Start": [0]}}, "unknown argument of kernel 'Start'; did you mean Starts"),
        ({"inputs": {"Starts": [0, 1]}}, r"input Starts has the shape \(2\), but the kernel takes \(9\)"),
        ({"inputs": {"Starts": np.zeros(9)}}, "input Starts must be int32, not float64"),
        ({"inputs": [None] * 4}, "takes 3 arguments, but inputs has 4"),
    ],
)
def test_facts_that_do_not_fit_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, WorkloadError), match=message):
        profile(data_kernels.sequences(8, 4096), **facts)


def test_a_second_variable_of_a_thread_index_is_that_index() -> None:
    """Half of the threads copy consecutive elements: 8 sectors of 32 bytes each way."""
    kernel = profile(data_kernels.own_thread_variable(4096))
    moved = [a for role in kernel.roles for p in role.phases for a in p.work.accesses]
    assert [(a.write, a.bytes, a.transactions) for a in moved] == [(False, 256.0, 8.0), (True, 256.0, 8.0)]
    assert not kernel.notes


def test_blocks_that_end_once_their_data_ends_are_followed() -> None:
    """16 blocks take the rows of four groups, padded to 128, in turns; each warp stores 64 bytes of a row."""
    ends = np.asarray([100, 300, 1000, 1500], dtype="int32")
    kernel = profile(data_kernels.persistent_rows(4096, 128, 4, 16), inputs={"Ends": ends})
    (loop,) = [p for r in kernel.roles for p in r.phases if p.is_loop]
    rows = _rows_of(ends, 16)
    assert loop.trips.mean == pytest.approx(np.mean([len(own) for own in rows]) + 1, rel=0.05)
    assert not any("end early" in note or "while loop" in note for note in kernel.notes)
    (stored,) = [a for a in loop.work.accesses if a.write]
    assert stored.transactions / stored.instructions == 2  # 32 lanes of two bytes, side by side


def _rows_of(ends: Any, blocks: int) -> list[list[int]]:
    """The rows that each block copies."""
    found: list[list[int]] = []
    for block in range(blocks):
        row, group, own = block, 0, list[int]()
        while True:
            while group < len(ends) and row >= ends[group]:
                row = row - ends[group] + -(-ends[group] // 128) * 128
                group += 1
            if group >= len(ends):
                break
            own.append(row)
            row += blocks
        found.append(own)
    return found


def test_without_its_data_a_loop_that_may_end_early_is_charged_in_full() -> None:
    kernel = profile(data_kernels.persistent_rows(4096, 128, 4, 16))
    assert loop_trips(kernel) == (4096.0,)
    assert "a loop may end early: all its iterations are charged" in kernel.notes


def test_strides_follow_from_inputs_or_are_those_of_a_contiguous_tensor() -> None:
    wide = np.zeros((64, 512), dtype="float16")[:, :256]
    assert profile(data_kernels.strided(256), inputs={"X": wide}) == profile(
        data_kernels.strided(256), dims="rows=64,stride=512"
    )
    assert profile(data_kernels.strided(256), dims="rows=64") == profile(
        data_kernels.strided(256), dims="rows=64,stride=256,unused=7"
    )


def test_a_stride_of_an_input_that_contradicts_a_stated_one_is_refused() -> None:
    wide = np.zeros((64, 512), dtype="float16")[:, :256]
    with pytest.raises(InputError, match="stride=256 contradicts stride=512"):
        profile(data_kernels.strided(256), inputs={"X": wide}, dims="stride=256")


def test_the_size_of_a_tensor_is_known_though_its_kernel_takes_no_size() -> None:
    kernel = profile(data_kernels.strided(256), dims="rows=64")
    assert max(t.bytes for t in kernel.tensors) == 64 * 256 * 2


def test_a_selection_divides_by_a_run_time_number_before_it_loads() -> None:
    # the quotient of 64 bits calls a routine, which keeps each of the four selections a branch
    (branches,) = {
        sum(p.work.load_branches for p in role.phases)
        for role in profile(data_kernels.split_rows(), dims={"parts": 8}).roles
    }
    assert branches == 4 * 128 / 32


def test_iterations_that_a_mask_leaves_out_do_not_wait_for_loads() -> None:
    """The compiler keeps the branch, so an iteration without work loads its part of the mask alone."""
    mask = np.zeros((8, 64), dtype="int8")
    mask[:, :16] = 1
    (only,) = profile(data_kernels.compressed(64), inputs=[None, mask]).roles
    idle, working = (p for p in only.phases if p.is_loop and p.trips.largest)
    assert (idle.trips.mean, working.trips.mean) == (48, 16)
    assert (idle.work.load_branches, working.work.load_branches > 0) == (0, True)
