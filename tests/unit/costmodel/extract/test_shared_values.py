"""What the compiler computes once for several copies of a loop, or for several loops, is counted once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.costmodel import lane_kernels as kernels
from tests.unit.costmodel.extract.reading import read, total
from tilesight.api.foreign_kernel import ForeignKernel, profiles_of
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.profile.values import Work
from tilesight.target.spec import load_target

TRIPS = 40  # too many to be unrolled


def _work(guard: str, *, stored_between: bool = False) -> Work:
    """Of one iteration of the loop over the trips, by 128 threads."""
    profile = read(kernels.maximum_and_sum(TRIPS, guard, stored_between))
    (loop,) = [phase for role in profile.roles for phase in role.phases if phase.is_loop]
    return loop.work


def test_loops_that_convert_the_same_registers_share_the_results() -> None:
    shared, anew = _work(""), _work("", stored_between=True)
    # a load has an address
    assert anew.integer_ops - shared.integer_ops == 128 * (8 + 1)


def test_a_comparison_is_counted_once_for_the_copies_of_a_loop_in_which_it_does_not_change() -> None:
    assert _work("thread").integer_ops - _work("").integer_ops == pytest.approx(128, rel=0.1)


def test_values_are_selected_one_by_one_if_threads_differ() -> None:
    assert _work("thread").vector_ops - _work("").vector_ops == 128 * 2 * 8


def test_a_condition_that_all_threads_share_makes_a_branch_whose_code_converts_anew() -> None:
    branch, plain = _work("loop"), _work("")
    assert branch.vector_ops - plain.vector_ops == 128 * 2
    # the second loop converts; the test of the branch is the other instruction
    assert branch.integer_ops - plain.integer_ops == pytest.approx(128 * (8 + 1), rel=0.1)


def test_each_iteration_of_a_while_loop_converts_and_compares_what_it_loaded() -> None:
    # 8 conversions and a comparison; 8 iterations are assumed
    assert total(read(kernels.sum_in_while(64)), "integer_ops") > 128 * 8 * (8 + 1)


def test_the_compiler_does_not_know_the_contents_of_a_tensor_that_the_caller_states() -> None:
    kernel = ForeignKernel("kernel", kernels.sum_of_first())
    stated = RunTimeFacts(inputs={"N": np.array([8], dtype=np.int32)})
    (unknown,), (known,) = (profiles_of(kernel, load_target("h200"), facts) for facts in (None, stated))
    assert total(known, "vector_ops") == total(unknown, "vector_ops") == 128 * (8 + 8)
    assert total(known, "integer_ops") == total(unknown, "integer_ops")


def test_two_branches_convert_for_themselves() -> None:
    both, one = (total(read(kernels.converted_in_branches(b)), "integer_ops") for b in (True, False))
    assert both - one >= 128 * 8 * 0.5


@pytest.mark.parametrize(
    ("inside", "changed", "functions"), [(False, False, 1), (True, False, 1), (True, True, 64)]
)
def test_a_function_of_what_a_loop_does_not_change_is_computed_before_it(
    inside: bool, changed: bool, functions: int
) -> None:
    profile = read(kernels.normalised_rows(64, 128 * 64, inside, changed))
    assert total(profile, "special_ops") == functions * 128
