"""The pass over producer warps: only the thread that loads waits."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from tilesight.builder import producer_warps as loaders
from tilesight.builder.producer_warps import without_idle_warps
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import lower
from tilesight.problem.candidate import Candidate
from tilesight.target.spec import load_target

# with shapes of one iteration, whose loop the compiler has taken away
CASES = {
    "matmul": ("matmul", "m=1024,n=1024,k=2048", ("m",)),
    "matmul, one iteration": ("matmul", "m=1024,n=1024,k=32", ("m",)),
    "flash_attention": (
        "flash_attention",
        "batch=1,heads=8,seq_len=1024,head_dim=128,causal=true",
        ("seq_len",),
    ),
    "flash_attention, one iteration": (
        "flash_attention",
        "batch=1,heads=8,seq_len=64,head_dim=128",
        ("heads",),
    ),
    "dequant_matmul": ("dequant_matmul", "m=64,n=1024,k=2048", ("m",)),
}
ONLY_IN_CI = ("flash_attention", "dequant_matmul")  # seconds each


@cache
def kernels_of(name: str, shape: str, dims: tuple[str, ...] = (), seed: int = 0) -> list[Any]:
    target = load_target("h200")
    template, workload = template_for(name, target, "bfloat16"), operator(name).workload(shape, "bfloat16")
    default = template.default_config(workload, target)
    assert default is not None
    configs = [default]
    if name == "matmul":  # schedules of their own have producers without idle threads
        drawn = template.space(workload, target).sample(20, seed=seed)
        configs.append(next(config for config in drawn if "schedule" not in config))
    return [
        lower_candidate(Candidate(workload, target, template, config, dims), only_read=True).device
        for config in configs
    ]


def idle_roles(kernels: Any) -> list[Any]:
    """The roles in `kernels` at whose end one elected thread loads and all other threads only wait."""
    found: list[Any] = []

    def visit(role: Any) -> Any:
        if any(loaders._idle_ends(loaders._parts(role))):
            found.append(role)
        return role

    for function in kernels.functions.values():
        loaders._in_roles(function.body, visit)
    return found


def calls(kernels: Any) -> dict[str, int]:
    """Number of occurrences of each call in the text of `kernels`."""
    from tvm import tirx

    found: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.Call):
            name = str(getattr(node.op, "name", node.op))
            found[name] = found.get(name, 0) + 1

    for function in kernels.functions.values():
        tirx.stmt_functor.post_order_visit(function.body, visit)
    return found


# loops of known length: those of matmul, for all
@pytest.mark.parametrize(
    ("case", "is_dynamic"),
    [
        *(("matmul", False), ("matmul, one iteration", False)),
        *(pytest.param(case, True, marks=[pytest.mark.full] * (case in ONLY_IN_CI)) for case in CASES),
    ],
)
def test_no_idle_thread_waits(case: str, is_dynamic: bool) -> None:
    name, shape, dims = CASES[case]
    for kernels in kernels_of(name, shape, dims if is_dynamic else ()):
        (role,) = idle_roles(kernels)
        led = without_idle_warps(kernels)
        assert idle_roles(led) == []
        before, after = calls(kernels), calls(led)
        elections = "tl.tl_shuffle_elect"
        assert {n: c for n, c in after.items() if n != elections} == {
            n: c for n, c in before.items() if n != elections
        }
        # one election replaces those in the role
        assert before[elections] - after[elections] == str(role).count("tl_shuffle_elect") - 1
        producer = re.split(r"if \w+ < 128:", str(led), maxsplit=1)[1]
        assert (
            producer.index("tl_shuffle_elect")
            < producer.index("mbarrier_wait_parity")
            < producer.index("tma_load")
        )


def test_a_loop_in_which_all_threads_copy_is_not_changed() -> None:
    # rows of 8,191 elements are no multiple of 16 bytes: all threads of the producer copy A, and meet in
    # every iteration
    for kernels in kernels_of("matmul", "m=300,n=512,k=8191"):
        assert "kWarpSpecializationScope" in str(kernels)
        assert idle_roles(kernels) == []
        assert without_idle_warps(kernels).script() == kernels.script()


def test_kernels_without_producers_are_not_changed() -> None:
    for kernels in kernels_of("rms_norm", "m=64,n=2880"):
        assert without_idle_warps(kernels).script() == kernels.script()


def persistent(trips: int = 8) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def kernel(
        A: T.Tensor((1024, 512), "bfloat16"),  # noqa: N803
        B: T.Tensor((512, 1024), "bfloat16"),  # noqa: N803
        C: T.Tensor((1024, 1024), "bfloat16"),  # noqa: N803
    ):  # type: ignore[no-untyped-def]
        with T.Kernel(16, threads=128) as (block,):
            a_tile, b_tile = T.alloc_shared((128, 64), "bfloat16"), T.alloc_shared((64, 128), "bfloat16")
            total = T.alloc_fragment((128, 128), "float32")
            for bx, by in T.Persistent([8, 8], 16, block):
                T.clear(total)
                for ko in T.Pipelined(trips, num_stages=3):
                    T.copy(A[by * 128, ko * 64], a_tile)
                    T.copy(B[ko * 64, bx * 128], b_tile)
                    T.gemm(a_tile, b_tile, total)
                T.copy(total, C[by * 128, bx * 128])

    return kernel


def guarded() -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def kernel(  # type: ignore[no-untyped-def]
        A: T.Tensor((128, 512), "bfloat16"),  # noqa: N803
        B: T.Tensor((512, 128), "bfloat16"),  # noqa: N803
        wanted: T.Tensor((8,), "int32"),
        C: T.Tensor((128, 128), "bfloat16"),  # noqa: N803
    ):
        with T.Kernel(1, threads=128):
            a_tile, b_tile = T.alloc_shared((128, 64), "bfloat16"), T.alloc_shared((64, 128), "bfloat16")
            total = T.alloc_fragment((128, 128), "float32")
            T.clear(total)
            for ko in T.Pipelined(8, num_stages=3):
                if wanted[ko] != 0:
                    T.copy(A[0, ko * 64], a_tile)
                    T.copy(B[ko * 64, 0], b_tile)
                    T.gemm(a_tile, b_tile, total)
            T.copy(total, C)

    return kernel


@pytest.mark.parametrize("make", [persistent, partial(persistent, 1), guarded])
def test_stages_that_are_counted(make: Callable[[], Any]) -> None:
    kernels = lower(make(), load_target("h200")).device
    assert len(idle_roles(kernels)) == 1
    assert "producer_phase_cnt" in str(idle_roles(kernels)[0])
    assert idle_roles(without_idle_warps(kernels)) == []


def changed(kernels: Any, kind: str, change: Callable[[Any], Any]) -> Any:
    """`kernels` with the nodes of one kind replaced by those that `change` returns."""
    from tvm import IRModule, tirx

    ((name, function),) = kernels.functions.items()
    return IRModule(
        {name: function.with_body(tirx.stmt_functor.ir_transform(function.body, None, change, [kind]))}
    )


def is_role(node: Any) -> bool:
    return str(node.attr_key) == "kWarpSpecializationScope"


@pytest.mark.parametrize("how", ["read", "passed on"])
def test_a_count_that_is_used_elsewhere_keeps_the_role(how: str) -> None:
    from tvm import tirx

    kernels = lower(persistent(), load_target("h200")).device
    stores: list[Any] = []
    tirx.stmt_functor.post_order_visit(
        idle_roles(kernels)[0],
        lambda node: stores.append(node) if isinstance(node, tirx.BufferStore) else None,
    )
    counter = next(store.buffer for store in stores)
    use = tirx.BufferLoad(counter, [0]) if how == "read" else tirx.call_extern("int32", "use", counter.data)
    more = tirx.Evaluate(use)
    used = changed(
        kernels, "tirx.AttrStmt", lambda node: tirx.SeqStmt([node, more]) if is_role(node) else None
    )
    assert len(idle_roles(without_idle_warps(used))) == 1


@pytest.mark.parametrize("what", ["after the wait", "in its condition", "by the others", "another election"])
def test_work_of_other_threads_keeps_the_role(what: str) -> None:
    from tvm import tirx

    (kernels, *_) = kernels_of("matmul", "m=1024,n=1024,k=2048")
    work = tirx.call_extern("int32", "work", 1)

    def more(node: Any) -> Any:
        if getattr(
            getattr(node.condition, "op", None), "name", ""
        ) != "tl.tl_shuffle_elect" or "tma_load" not in str(node):
            return None
        if what == "by the others":
            return tirx.IfThenElse(node.condition, node.then_case, tirx.Evaluate(work))
        if what == "another election":
            return tirx.IfThenElse(tirx.And(node.condition, tirx.Var("wanted", "bool")), node, None)
        if what == "in its condition":
            return tirx.IfThenElse(work > 0, node, None)
        return tirx.SeqStmt([tirx.Evaluate(work), node])

    other = changed(kernels, "tirx.IfThenElse", more)
    assert other.script() != kernels.script()
    assert without_idle_warps(other).script() == other.script()
