"""The shortcut of a pass gives the same IR. tests/golden compares it for kernels of every operator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.kernels import operator, template_for
from tilesight.lowering import thread_sync
from tilesight.lowering.lower import Lowered, lower
from tilesight.problem.space import Config
from tilesight.target.spec import Target, load_target

H200 = load_target("h200")
# barriers in a branch, and one of all threads
SPECIALIZED = Config(MATMUL_TILE)


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that take the shortcut."""
    found: list[str] = []
    threads_in_ranges = thread_sync._threads_in_ranges

    def noted(function: Any) -> Any:
        threads = threads_in_ranges(function)
        if threads is not None:
            found.append(str(function.attrs["target"].kind.name))
        return threads

    monkeypatch.setattr(thread_sync, "_threads_in_ranges", noted)
    return found


def same_ir(prim_func: Any, target: Target) -> tuple[Lowered, Lowered]:
    """A pair of both lowerings with the same IR, of up to eight of each.

    TileLang's solver has a time limit: on a busy machine it simplifies an index less in one lowering than in
    the next, with the shortcut and without it.
    """
    import tvm

    wholes: dict[str, Lowered] = {}
    shorts: dict[str, Lowered] = {}
    for _ in range(8):
        whole, short = lower(prim_func, target), lower(prim_func, target, only_read=True)
        wholes.setdefault(whole.device.script(), whole)
        shorts.setdefault(short.device.script(), short)
        common = wholes.keys() & shorts.keys()
        if common:
            script = min(common)
            whole, short = wholes[script], shorts[script]
            break
    tvm.ir.assert_structural_equal(short.device, whole.device, map_free_vars=True)
    assert short.device.script() == whole.device.script()
    assert short.host.script() == whole.host.script()
    assert short.fingerprint == whole.fingerprint
    return whole, short


def test_a_specialized_kernel_takes_the_shortcut(shortened: list[str]) -> None:
    workload = operator("matmul").workload("m=512,n=512,k=512")
    template = template_for("matmul", H200, "bfloat16")
    _, short = same_ir(template.build(workload, SPECIALIZED), H200)
    assert shortened
    assert 'T.tvm_storage_sync("shared.dyn", 3, 256)' in short.device.script(), "the barrier of a branch"


def kernel_with_a_branch(condition: Any, threads: int = 128) -> Any:
    """A kernel in which threads exchange values before, inside and after a branch on the thread index.

    Args:
        condition: of the branch, from the thread index.
        threads: of a block.
    """
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def exchange(A: T.Tensor((threads,), "float32"), B: T.Tensor((threads,), "float32")):  # type: ignore[no-untyped-def, valid-type]  # noqa: N803
        with T.Kernel(1, threads=threads) as _:
            first = T.alloc_shared((threads,), "float32")
            second = T.alloc_shared((threads,), "float32")
            thread = T.get_thread_binding()
            first[thread] = A[thread]
            B[thread] = first[threads - 1 - thread]
            if condition(thread):
                second[thread] = A[thread] * 2.0
                B[thread] = second[thread ^ 1] + 1.0
            first[thread] = A[thread] + 1.0
            B[thread] = first[threads - 1 - thread]

    return exchange


@pytest.mark.parametrize(
    ("condition", "takes"),
    [
        (lambda thread: thread < 64, True),
        (lambda thread: thread >= 32, True),
        (lambda thread: thread > 31, True),
        (lambda thread: thread <= 95, True),
        (lambda thread: 32 <= thread, True),  # noqa: SIM300 - another node of the IR
        (lambda thread: thread < 80, False),  # ends in the middle of a warp
        (lambda thread: thread > 32, False),
        (lambda thread: thread // 32 == 1, False),
        (lambda thread: thread % 64 < 32, False),
    ],
)
def test_branches_of_whole_warps_take_the_shortcut(condition: Any, takes: bool, shortened: list[str]) -> None:
    prim_func = kernel_with_a_branch(condition)
    try:
        lower(prim_func, H200)
    except Exception as error:  # a barrier that not all threads of a warp reach
        with pytest.raises(type(error)):
            lower(prim_func, H200, only_read=True)
    else:
        assert "storage_sync" in same_ir(prim_func, H200)[1].device.script()
    assert bool(shortened) == takes


def test_a_block_of_broken_warps_takes_no_shortcut(shortened: list[str]) -> None:
    same_ir(kernel_with_a_branch(lambda thread: thread < 32, threads=112), H200)
    assert not shortened


def test_instruments_of_the_caller_still_run() -> None:
    import tilelang  # noqa: F401
    from tvm.ir.instrument import pass_instrument
    from tvm.ir.transform import PassContext

    seen: list[str] = []

    @pass_instrument
    class Noted:
        def run_before_pass(self, _module: Any, info: Any) -> None:
            seen.append(str(info.name))

    prim_func = kernel_with_a_branch(lambda thread: thread < 64)
    with PassContext(instruments=[Noted()]) as context:
        lower(prim_func, H200, only_read=True)
        assert thread_sync.PASS in seen
        assert len(context.instruments) == 1, "the shortcut is gone"
