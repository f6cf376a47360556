"""What a traced kernel reads, writes and returns."""

from typing import Any

import pytest

from tests.unit.decorator import user_kernels
from tilesight.decorator.interface import Interface, inputs_first, read_interface
from tilesight.errors import InputError


def uses(interface: Interface) -> dict[str, str]:
    return {t.name: "r" * t.is_read + "w" * t.is_written + "o" * t.is_result for t in interface.tensors}


def test_roles() -> None:
    traced = user_kernels.add_factory(64)
    assert uses(read_interface(traced, None, "add")) == {"A": "r", "B": "r", "C": "w"}
    interface = read_interface(traced, [-1], "add")
    assert uses(interface)["C"] == "wo"
    assert [t.name for t in interface.given] == ["A", "B"]
    assert [t.name for t in interface.results] == ["C"]
    assert interface.presets == ()


def test_tensors_that_are_read_and_written_are_preset() -> None:
    traced = user_kernels.accumulate_factory(64)
    interface = read_interface(traced, None, "accumulate")
    assert uses(interface) == {"Y": "rw", "X": "r"}
    assert [t.name for t in interface.presets] == ["Y"]
    assert [t.dtype for t in interface.tensors] == ["int32", "int8"]
    assert [traced.buffer_map[p].name for p in inputs_first(traced, interface).params] == ["X", "Y"]
    assert not interface.accumulates


def test_tile_operators_atomics_and_other_types() -> None:
    import tilelang.language as T  # noqa: N812

    f16, f32, truth, f8 = (T.Tensor((128,), dtype) for dtype in ("float16", "float32", "bool", "float8_e4m3"))

    @T.prim_func
    def kernel(A: f16, B: f32, C: truth, D: f8):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(1, threads=128):
            part = T.alloc_fragment((128,), "float32")
            T.copy(A, part)
            T.atomic_add(B, part)
            T.copy(part, D)
            for i in T.Parallel(128):
                C[i] = part[i] > 0

    interface = read_interface(kernel, None, "kernel")
    assert uses(interface) == {"A": "r", "B": "rw", "C": "w", "D": "w"}
    assert [t.dtype for t in interface.tensors] == ["float16", "float32", "bool", "float8_e4m3fn"]
    assert interface.accumulates


@pytest.mark.parametrize(
    ("traced", "out_idx", "said"),
    [
        (lambda: user_kernels.dynamic_factory(), None, "known at run time only"),
        (lambda: user_kernels.scalar_factory(64), None, "argument 's' is a number"),
        (lambda: user_kernels.add_factory(64), [3], "out_idx=3 is no argument of its kernel, which has 3"),
        (lambda: user_kernels.add_factory(64), -4, "out_idx=-4"),
    ],
)
def test_what_cannot_be_measured(traced: Any, out_idx: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_interface(traced(), out_idx, "kernel")


def test_configs_must_take_the_same_tensors() -> None:
    one, two = (read_interface(user_kernels.add_factory(n), [-1], "add") for n in (64, 128))
    assert one.difference(one) == ""
    assert "its 'A' is float32[128], not float32[64]" in one.difference(two)
    assert "takes 2 tensors, not 3" in one.difference(
        read_interface(user_kernels.accumulate_factory(64), None, "accumulate")
    )
