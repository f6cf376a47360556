"""Elements of local buffers are registers of their own where the compiler unrolls the loops around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilelang  # noqa: F401  (it must be imported before tvm)
from tvm import tirx

from tests.unit.costmodel import fragment_kernels as kernels
from tests.unit.costmodel.extract.reading import read
from tilesight.costmodel.extract.expressions import identity
from tilesight.costmodel.extract.registers import LiveRanges
from tilesight.costmodel.extract.unrolled_elements import UnrolledElements, transformed_buffer

HALF = np.arange(8) < 4


def _loop(extent: int) -> tuple[Any, Any]:
    counter = tirx.Var("i", "int32")
    return counter, tirx.For(counter, 0, extent, tirx.ForKind.UNROLLED, tirx.Evaluate(0))


def _buffer(size: int, scope: str = "local") -> Any:
    return tirx.decl_buffer((size,), "float32", scope=scope)


def _peak(live: LiveRanges, bytes_each: dict[int, float]) -> float:
    live.finish()
    return live.peak_registers(0, bytes_each)


def _gated() -> tuple[LiveRanges, int, int]:
    """A loop that computes a gate from each of some values, and the two buffers."""
    values, gates = 1, 2
    live = LiveRanges()
    live.store(0, values)
    with live.unrolled():
        live.touch(0, values)
        live.store(0, gates, values)
    return live, values, gates


def test_an_element_makes_room_for_what_is_computed_from_it() -> None:
    """Half of eight values are exchanged for others while the other half waits."""
    values, results = 1, 2
    live = LiveRanges()
    live.store(0, values)
    with live.unrolled():
        live.touch(0, values, HALF)
        live.store(0, results)
    live.touch(0, results)
    live.touch(0, values, ~HALF)
    assert _peak(live, {values: 32, results: 16}) == 8


def test_what_one_unrolled_loop_uses_up_needs_no_registers() -> None:
    """Eight values, and for each a gate that the next loop multiplies it by."""
    live, values, gates = _gated()
    with live.unrolled():
        live.touch(0, values)
        live.touch(0, gates)
        live.store(0, values)
    live.touch(0, values)
    assert _peak(live, {values: 32, gates: 32}) == 8


def test_elements_that_are_not_needed_later_are_not_given_back_twice() -> None:
    """Of eight transformed elements later loops use four; the others are live where they are stored."""
    values, others, results = 1, 2, 3
    live = LiveRanges()
    live.store(0, others)
    live.store(0, values)
    with live.unrolled():
        live.touch(0, values)
        live.store(0, results, values, np.ones(8, bool))
    live.touch(0, values)
    with live.unrolled():
        live.touch(0, results, HALF)
        live.touch(0, others)
    with live.unrolled():
        live.touch(0, results, HALF)
    assert _peak(live, dict.fromkeys((values, others, results), 32.0)) == 8 + 8 + 4


def test_registers_of_the_loop_with_the_products_are_told_from_those_around_it() -> None:
    sums, values, sizes = 1, 2, {1: 64.0, 2: 32.0}
    live = LiveRanges()
    live.store(0, sums)
    with live.loop():
        live.accumulate(0, sums, kept=False)
        live.touch(0, sums)
    live.store(0, values)
    live.touch(0, values)
    live.touch(0, sums)
    live.finish(sizes)
    assert (live.peak_registers(0, sizes), live.peak_beside_products(0, sizes)) == (24, 16)


def test_what_two_loops_use_needs_registers() -> None:
    live, values, gates = _gated()
    for _ in range(2):
        with live.unrolled():
            live.touch(0, gates)
            live.touch(0, values)
    assert _peak(live, {values: 32, gates: 32}) == 16


def test_the_elements_at_an_index_in_unrolled_loops() -> None:
    elements, buffer = UnrolledElements(), _buffer(16)
    (i, outer), (j, inner) = _loop(4), _loop(2)
    with elements.loop(outer), elements.loop(inner):
        assert np.flatnonzero(elements.used(buffer, i * 2 + j)).tolist() == list(range(8))
        pairs = tirx.Ramp(i * 4, 1, 2)
        assert np.flatnonzero(elements.used(buffer, pairs)).tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
        assert elements.is_static(i < 2)
        with elements.condition(i < 2):
            assert np.flatnonzero(elements.used(buffer, i * 4 + j)).tolist() == [0, 1, 4, 5]
            with elements.condition(j > 0):
                assert np.flatnonzero(elements.used(buffer, i * 4 + j)).tolist() == [1, 5]
    assert elements.used(buffer, i) is None
    assert not elements.is_static(i < 2)


def test_an_index_of_a_thread_may_be_any_element() -> None:
    elements, (i, loop) = UnrolledElements(), _loop(4)
    with elements.loop(loop):
        assert elements.used(_buffer(16), i + tirx.Var("thread", "int32")) is None


@pytest.mark.parametrize(
    ("value", "is_transformed"),
    [
        (lambda a, _b, i: tirx.exp2(a[i] * 2.0 + a[i]), True),
        (lambda a, _b, i: a[i].astype("bfloat16"), True),
        (lambda a, _b, i: a[i] + a[i + 1], False),
        (lambda a, b, i: a[i] * b[i], False),
        (lambda _a, _b, i: i.astype("float32"), False),
    ],
)
def test_the_buffer_whose_element_a_value_transforms(
    value: Callable[[Any, Any, Any], Any], is_transformed: bool
) -> None:
    a, b, i = _buffer(8), _buffer(8), tirx.Var("i", "int32")
    assert transformed_buffer(value(a, b, i)) == (identity(a.data) if is_transformed else None)


def test_a_number_in_memory_that_all_elements_share_may_scale_them() -> None:
    a, scales, (i, other) = _buffer(8), _buffer(8, "global"), (tirx.Var("i", "int32"), tirx.Var("j", "int32"))
    counters = frozenset({identity(i)})
    assert transformed_buffer(a[i] * scales[other], counters) == identity(a.data)
    assert transformed_buffer(a[i] * scales[i], counters) is None


def test_bits_of_a_packed_number_are_a_transformed_element() -> None:
    packed, i = tirx.decl_buffer((8,), "uint8", scope="local"), tirx.Var("i", "int32")
    value = tirx.bitwise_and(
        tirx.shift_right(packed[i // 2], (i % 2 * 4).astype("uint8")), tirx.const(15, "uint8")
    )
    assert transformed_buffer(value.astype("float16"), frozenset({identity(i)})) == identity(packed.data)


def test_packed_numbers_wait_in_place_of_what_is_made_of_them() -> None:
    """Thirty-two numbers in four registers, which are unpacked behind a barrier."""
    packed, values = 1, 2
    live = LiveRanges()
    live.store(0, packed)
    with live.unrolled():
        live.touch(0, packed)
        live.store(0, values, packed)
    with live.unrolled():
        live.touch(0, values)
    sizes = {packed: 16.0, values: 64.0}
    live.finish(sizes)
    assert live.peak_registers(0, sizes) == 4


def test_a_value_of_shared_memory_is_no_transformed_element() -> None:
    assert transformed_buffer(_buffer(8, "shared")[0] * 2.0) is None


@pytest.mark.parametrize("kernel", [kernels.gated, kernels.in_halves])
def test_steps_of_a_fragment_need_the_registers_of_its_values_alone(kernel: Callable[[], Any]) -> None:
    (role,) = read(kernel()).roles
    assert role.local_registers == kernels.COLUMNS
