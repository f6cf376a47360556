"""Keys and workloads of calls."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tilesight.decorator.arguments import REST, Call, as_tilelang, read_call
from tilesight.decorator.interface import Interface, TensorArgument
from tilesight.errors import WorkloadError


def tensor(name: str, *shape: int, dtype: str = "float16", result: bool = False) -> TensorArgument:
    return TensorArgument(name, shape, dtype, dtype, is_read=not result, is_written=result, is_result=result)


INTERFACE = Interface((tensor("A", 4, 6), tensor("C", 4, result=True)), accumulates=False)


def kernel(m: int, n: int, causal: bool = False, dtype: Any = "float16", block: int = 64) -> None: ...


def call(*args: Any, merged: tuple[str, ...] = (), **kwargs: Any) -> Call:
    return read_call(inspect.signature(kernel), args, kwargs, ("block",), merged)


def test_the_key_does_not_depend_on_how_arguments_are_written() -> None:
    assert call(2, 3).key == call(m=2, n=3, causal=False).key == call(2, n=3, dtype="float16").key
    assert (
        len(
            {
                call(2, 3).key,
                call(3, 2).key,
                call(2, True).key,
                call(2, 1).key,
                call(2, 1.0).key,
                call(2, 3, True).key,
            }
        )
        == 6
    )


def test_workloads() -> None:
    workload = call(4096, 8192).workload("user.kernel", INTERFACE, ())
    assert dict(workload.dims) == {"m": 4096, "n": 8192}
    assert workload.attrs["causal"] is False
    assert REST in workload.attrs
    other = call(4096, 8192, dtype="bfloat16").workload("user.kernel", INTERFACE, ())
    assert other.key != workload.key
    assert call(4096, 8192, dtype="float16").workload("user.kernel", INTERFACE, ()) == workload


def test_a_function_without_numbers_has_sizes_of_tensors() -> None:
    told = read_call(inspect.signature(lambda causal=False, block=64: (causal, block)), (), {}, ("block",))
    assert dict(told.workload("user.kernel", INTERFACE, ()).dims) == {"A_0": 4, "A_1": 6}


def test_negative_and_huge_numbers() -> None:
    assert call(-1, 0).workload("user.kernel", INTERFACE, ()).attrs["m"] == -1
    huge = call(2**80, 1).workload("user.kernel", INTERFACE, ())
    assert huge.key != call(2**81, 1).workload("user.kernel", INTERFACE, ()).key


def eager(A: Any, B: Any, causal: bool = False, block: int = 64) -> None: ...  # noqa: N803


def eager_call(*args: Any, **kwargs: Any) -> Call:
    return read_call(inspect.signature(eager), args, kwargs, ("block",), (), frozenset("AB"))


def test_tensors_count_by_shape_dtype_and_strides() -> None:
    a, b = torch.zeros(4, 6), torch.zeros(6, 4).T
    assert eager_call(a, b).key == eager_call(torch.ones(4, 6), B=b).key
    assert len({eager_call(x, y).key for x, y in ((a, a), (a, b), (a.half(), a), (a[:2], a))}) == 4


def test_eager_functions_take_tensors_or_their_sizes() -> None:
    given, sized = eager_call(torch.zeros(4, 6), torch.zeros(3)), eager_call(N=6, M=4)
    assert sized.key == eager_call(M=4, N=6).key != eager_call(M=4, N=7).key
    interface = Interface((tensor("A", 4, 6), tensor("B", 3), tensor("C", 4, result=True)), accumulates=False)
    workload = given.workload("user.kernel", interface, ())
    assert dict(workload.dims) == {"A_0": 4, "A_1": 6, "B_0": 3}
    assert sized.workload("user.kernel", interface, ()) == workload
    assert eager_call(N=6, M=4, causal=True).workload("user.kernel", interface, ()) != workload
    half = Interface((tensor("A", 4, 6, dtype="float32"), *interface.tensors[1:]), accumulates=False)
    assert given.workload("user.kernel", half, ()) != workload
    empty = Interface((tensor("A", 0, 6), *interface.tensors[1:]), accumulates=False)
    with pytest.raises(WorkloadError, match="without elements"):
        given.workload("user.kernel", empty, ())
    with pytest.raises(TypeError, match="missing 1 required argument: B"):
        eager_call(torch.zeros(4, 6))


def test_unspecialized_arguments() -> None:
    one, two = call(2, 3, merged=("n",)), call(2, 5, merged=("n",))
    assert one.key != two.key, "each has a kernel of its own"
    assert one.tuned_key == two.tuned_key
    assert one.workload("user.kernel", INTERFACE, ("n",)) == two.workload("user.kernel", INTERFACE, ("n",))


def test_arguments_that_the_caller_chose() -> None:
    assert call(2, 3).chosen == ()
    assert call(2, 3, block=32).chosen == ("block",)
    assert call(2, 3, False, "float16", 32).chosen == ("block",)


def test_python_errors_stay_python_errors() -> None:
    with pytest.raises(TypeError, match="missing 1 required argument: n"):
        call(2)
    with pytest.raises(TypeError, match="unexpected keyword"):
        call(2, 3, blok=3)


def test_arguments_for_functions_that_make_configs() -> None:
    assert as_tilelang(torch.zeros(2, 3)) == ("tensor", "torch.float32", (2, 3), (3, 1))
    assert as_tilelang([1, (2, [3])]) == (1, (2, (3,)))
    assert as_tilelang({"b": 1, "a": [2]}) == (("a", (2,)), ("b", 1))


def test_mutable_arguments() -> None:
    assert call([1, 2], {"a": [1]}).key == call([1, 2], {"a": [1]}).key != call([1, 3], {"a": [1]}).key
