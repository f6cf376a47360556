"""The call of one kernel: the arguments that the library receives."""

from __future__ import annotations

import struct
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilesight.builder.loaded_kernel import LaunchError
from tilesight.dispatch.kernels import bound_calls
from tilesight.dispatch.kernels.bound_calls import CallCounter, bind_call
from tilesight.dispatch.problem import DispatchProblem
from tilesight.errors import InputError

CPU = torch.device("cpu")


class Library:
    """Stores its arguments and returns `status`."""

    def __init__(self, arity: int, sizes: int = 0, status: int = 0) -> None:
        self.arity, self.sizes, self.status = arity, sizes, status
        self.seen: list[tuple[int, ...]] = []

    def launch(self, packed: bytes, stream: int) -> int:
        assert stream == 0
        self.seen.append(struct.unpack(f"={self.arity + self.sizes}q", packed))
        return self.status

    def check(self, status: int) -> None:
        raise LaunchError(f"error {status}")


def problem(*outputs: str) -> Any:
    made = SimpleNamespace(
        inputs=("x",),
        outputs=outputs,
        operator=SimpleNamespace(name="split"),
        dtype_of=lambda name: {"z": "int32"}.get(name, "float32"),
        check_layout=lambda named: [t.is_contiguous() for t in named.values()],
        check_output=lambda *_: None,
    )
    made.check_overlap = partial(DispatchProblem.check_overlap, made)
    return made


@pytest.mark.parametrize("outputs", [("y",), ("y", "z")])
def test_each_call_has_scratch_of_its_own_after_the_outputs(
    outputs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[torch.Tensor] = []

    def allocate(size: Any, stride: Any, dtype: Any) -> torch.Tensor:
        held.append(torch.empty_strided(size, stride, dtype=dtype))
        return held[-1]

    monkeypatch.setattr(bound_calls, "allocator", lambda _device: allocate)
    library, x = Library(3 + len(outputs), 1), torch.randn(4, 2)
    scratch = [((2, 4), "float32"), ((3,), "int32")]
    shapes: list[tuple[int, ...]] = [(4, 2)] * len(outputs)
    serve = bind_call(library, problem(*outputs), shapes, [4], CPU, CallCounter(), scratch)  # type: ignore[arg-type]
    serve((x,), None)
    made = held[-2:]
    assert [(t.shape, t.dtype) for t in made] == [((2, 4), torch.float32), ((3,), torch.int32)]
    assert library.seen[0][-3:] == (made[0].data_ptr(), made[1].data_ptr(), 4)
    serve((x,), None)
    assert library.seen[0][-3:-1] != library.seen[1][-3:-1]


def test_several_outputs_are_returned_as_a_tuple() -> None:
    library, calls, x = Library(3, 1), CallCounter(), torch.randn(4, 2)
    serve = bind_call(library, problem("y", "z"), [(4, 2), (4,)], [4], CPU, calls)  # type: ignore[arg-type]
    y, z = serve((x,), None)
    assert (y.shape, y.dtype, z.shape, z.dtype) == ((4, 2), torch.float32, (4,), torch.int32)
    assert library.seen == [(x.data_ptr(), y.data_ptr(), z.data_ptr(), 4)]
    assert serve((x,), (y, z)) == (y, z)
    assert library.seen[1] == library.seen[0]
    assert calls.count == 2


def test_outputs_that_share_memory_are_refused() -> None:
    library, x, memory = Library(3), torch.randn(4), torch.empty(8)
    serve = bind_call(library, problem("y", "u"), [(4,), (4,)], [], CPU, CallCounter())  # type: ignore[arg-type]
    for out, message in (
        ((memory[:4], memory[3:7]), r"out \(u\) shares memory with y"),
        ((memory[:4], x), r"out \(u\) shares memory with x"),
    ):
        with pytest.raises(InputError, match=message):
            serve((x,), out)
    assert library.seen == []
    assert len(serve((x,), (memory[:4], memory[4:]))) == 2


def test_one_output_is_returned_as_a_tensor() -> None:
    library, x = Library(2), torch.randn(4, 2)
    serve = bind_call(library, problem("y"), [(4, 2)], [], CPU, CallCounter())  # type: ignore[arg-type]
    y = serve((x,), None)
    assert library.seen == [(x.data_ptr(), y.data_ptr())]
    assert y.is_contiguous()


@pytest.mark.parametrize("outputs", [("y",), ("y", "z")])
def test_a_refused_launch_is_an_error(outputs: tuple[str, ...]) -> None:
    shapes = [(4,), (4,)][: len(outputs)]
    serve = bind_call(Library(1 + len(outputs), status=9), problem(*outputs), shapes, [], CPU, CallCounter())  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="error 9"):
        serve((torch.randn(4),), None)


@pytest.mark.parametrize(("arity", "sizes"), [(3, 0), (2, 1), (1, 0)])
def test_a_library_with_other_arguments_is_refused(arity: int, sizes: int) -> None:
    with pytest.raises(
        LaunchError, match=f"takes {arity} tensors and {sizes} sizes, and should take 2 and 0"
    ):
        bind_call(Library(arity, sizes), problem("y"), [(4,)], [], CPU, CallCounter())  # type: ignore[arg-type]
