"""Slices that nothing reads are left out before the passes, which make the same IR of the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.builder.build import device_source
from tilesight.costmodel.extract import read_profiles
from tilesight.kernels import operator, template_for
from tilesight.lowering import lower as lower_module
from tilesight.lowering import unused_slices
from tilesight.lowering.dynamic import at, lower_candidate
from tilesight.lowering.lower import Lowered, lower
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

H200 = load_target("h200")
# blocks that copy through TMA in a loop of their own, whose copies take slices
CLUSTER = Config({**MATMUL_TILE, "policy": "full_row", "cluster_m": 2})
STAYS = Config({**MATMUL_TILE, "policy": "full_row", "persistent": 132, "schedule": "overlapped"})


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slices each lowering left out."""
    found: list[int] = []
    drop = unused_slices.drop_unused_slices

    def noted(module: Any) -> int:
        found.append(drop(module))
        return found[-1]

    monkeypatch.setattr(unused_slices, "drop_unused_slices", noted)
    return found


@contextlib.contextmanager
def all_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lowerings in this block leave nothing out."""
    with monkeypatch.context() as patched:
        patched.setattr(lower_module, "without_unused_slices", contextlib.nullcontext)
        yield


def assert_same(one: Lowered, other: Lowered) -> None:
    assert one.device.script() == other.device.script()
    assert one.host.script() == other.host.script()
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize("config", [CLUSTER, STAYS], ids=["cluster", "stays"])
@pytest.mark.parametrize("dynamic", [(), ("m",)], ids=["static", "dynamic"])
def test_the_ir_and_the_profiles_are_the_same(
    config: Config, dynamic: tuple[str, ...], dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = operator("matmul").workload("m=4096,n=1024,k=512")
    template = template_for("matmul", H200, "bfloat16")
    candidate = Candidate(workload, H200, template, config, dynamic)
    short = lower_candidate(candidate, only_read=True)
    assert dropped[-1] > 0
    with all_slices(monkeypatch):
        whole = lower_candidate(candidate, only_read=True)
    assert len(dropped) == 1
    assert_same(short, whole)
    sizes = [{**workload.dims, "m": m} for m in (4096, 17)] if dynamic else [workload.dims]
    for dims in sizes:
        assert read_profiles(at(short, dims), H200) == read_profiles(at(whole, dims), H200)


def test_what_is_compiled_is_the_same(dropped: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    template = template_for("matmul", H200, "bfloat16")
    candidate = Candidate(operator("matmul").workload("m=4096,n=1024,k=512"), H200, template, CLUSTER, ("m",))
    short = lower_candidate(candidate)
    assert dropped[-1] > 0
    with all_slices(monkeypatch):
        whole = lower_candidate(candidate)
    assert_same(short, whole)
    assert device_source(short, H200) == device_source(whole, H200)


def kernel_of_slices() -> Any:
    """A kernel with slices of one and of two dimensions, which copies take as regions."""
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def copies(A: T.Tensor((128, 64), "float32"), B: T.Tensor((128, 64), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(2, threads=64) as block:
            tile = T.alloc_shared((64, 64), "float32")
            plane = A[block * 64 : block * 64 + 64, 0:64]
            line = A[block * 64, 0:64]
            T.copy(plane, tile)
            T.copy(line, tile[0, :])
            T.copy(tile, B[block * 64, 0])

    return copies


def bound_names(module: Any) -> list[str]:
    """The names of variables that hold vector loads."""
    from tvm import tirx

    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Bind) and isinstance(node.value, tirx.BufferLoad):
            found.append(str(node.var.name))

    for function in module.functions.values():
        tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


def module_of(function: Any) -> Any:
    from tvm import IRModule

    return IRModule({"main": function})


def test_only_slices_that_simplify_drops_in_any_case_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of one dimension stays where TileLang's own rule is another one: whether anything uses it."""
    prim_func = kernel_of_slices()
    module = module_of(prim_func)
    assert bound_names(module) == ["plane", "line"]
    assert unused_slices.drop_unused_slices(module) == 1
    assert bound_names(module) == ["line"]
    short = lower(prim_func, H200)
    with all_slices(monkeypatch):
        assert_same(short, lower(prim_func, H200))


def test_a_slice_that_is_read_stays() -> None:
    from tvm import tirx

    prim_func = kernel_of_slices()
    slices: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Bind) and str(node.var.name) == "plane":
            slices.append(node.var)

    tirx.stmt_functor.post_order_visit(prim_func.body, visit)
    (plane,) = slices
    body = tirx.SeqStmt([prim_func.body, tirx.Evaluate(plane)])
    module = module_of(prim_func.with_body(body))
    assert unused_slices.drop_unused_slices(module) == 0
    assert bound_names(module) == ["plane", "line"]


def test_instruments_of_the_caller_still_run() -> None:
    import tilelang  # noqa: F401
    from tvm.ir.instrument import pass_instrument
    from tvm.ir.transform import PassContext

    seen: list[str] = []

    @pass_instrument
    class Noted:
        def run_before_pass(self, _module: Any, info: Any) -> None:
            seen.append(str(info.name))

    with PassContext(instruments=[Noted()]) as context:
        lower(kernel_of_slices(), H200, only_read=True)
        assert unused_slices.PASS in seen
        assert len(context.instruments) == 1, "nothing stays behind"
