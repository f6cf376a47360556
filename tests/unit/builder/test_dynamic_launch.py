"""Launch plans and launchers of kernels with dynamic dimensions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tilesight.builder.build import build_kernel
from tilesight.builder.launch_plan import LaunchPlan, UnsupportedLaunchError, read_plan
from tilesight.builder.launcher import cuda_launcher, hip_launcher
from tilesight.builder.loaded_kernel import LaunchError, LoadedKernel
from tilesight.builder.size_expr import Expression
from tilesight.errors import FailureKind
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import lower
from tilesight.problem.candidate import Candidate
from tilesight.target.spec import load_target


def candidate(target: str, shape: str, *dims: str, name: str = "matmul") -> Candidate:
    found = load_target(target)
    workload = operator(name).workload(shape, "bfloat16" if found.is_gpu else "float32")
    template = template_for(name, found, workload.dtype)
    config = template.default_config(workload, found)
    assert config is not None
    return Candidate(workload, found, template, config, dims)


def plan_of(lowered_candidate: Candidate) -> LaunchPlan:
    return read_plan(lower_candidate(lowered_candidate, only_read=True))


def test_grid_descriptors_and_arguments_follow_the_dynamic_dimension() -> None:
    lowered_candidate = candidate("h200", "m=777,n=1024,k=512", "m")
    plan = plan_of(lowered_candidate)
    (launch,) = plan.launches
    block = lowered_candidate.config.int("block_m")
    assert plan.sizes == ("m",)
    assert launch.grid[1] == Expression(f"tilesight_div((size_0 + INT64_C({block - 1})), INT64_C({block}))")
    assert launch.grid[0] == 1024 // lowered_candidate.config.int("block_n")
    a, b, c = plan.descriptors
    assert (a.dims, a.strides) == ((512, Expression("size_0")), (1024,))
    assert (b.dims, b.strides) == ((1024, 512), (2048,))
    assert (c.dims, c.strides) == ((1024, Expression("size_0")), (2048,))
    assert launch.arguments[-1].index == Expression("size_0")
    assert plan.extents == (("A", (Expression("size_0"), 512)), ("C", (Expression("size_0"), 1024)))


def test_the_code_is_one_for_all_sizes() -> None:
    one = candidate("h200", "m=777,n=1024,k=512", "m")
    other = replace(one, workload=operator("matmul").workload("m=4096,n=1024,k=512", "bfloat16"))
    first, second = lower_candidate(one, only_read=True), lower_candidate(other, only_read=True)
    assert first.fingerprint == second.fingerprint
    assert read_plan(first) == read_plan(second)


def test_a_static_kernel_takes_no_sizes() -> None:
    source = cuda_launcher(plan_of(candidate("h200", "m=777,n=1024,k=512")))
    assert "int tilesight_sizes(void) { return 0; }" in source
    assert "size_0" not in source
    assert "tilesight_div" not in source


def test_launchers_check_sizes_before_anything_else() -> None:
    cuda = cuda_launcher(plan_of(candidate("h200", "m=777,n=1024,k=512", "m")))
    hip = hip_launcher(plan_of(candidate("mi300x", "m=777,n=1024,k=512", "m")))
    for source in (cuda, hip):
        body = source[source.index("int tilesight_call(void **arguments") :]
        assert "(int64_t)(intptr_t)arguments[3]" in body
        assert (
            body.index("must lie in 1 ..")
            < body.index("elements at m=%lld")
            < body.index("blocks along y")
            < body.index("aunchKernel")
        )


def test_a_descriptor_is_made_again_for_another_tensor_or_size_only() -> None:
    source = cuda_launcher(plan_of(candidate("h200", "m=777,n=1024,k=512", "m")))
    conditions = re.findall(r"if \(!\((cached_\d\.tensor && .*)\)\) \{", source)
    assert conditions == [
        "cached_0.tensor && cached_0.tensor == arguments[0] && cached_0.size_0 == size_0",
        "cached_1.tensor && cached_1.tensor == arguments[1]",  # B's shape is fixed
        "cached_2.tensor && cached_2.tensor == arguments[2] && cached_2.size_0 == size_0",
    ]
    assert source.count("static thread_local struct") == 3


def test_strides_that_tma_cannot_take_are_refused() -> None:
    import tilelang.language as T  # noqa: N812

    n = T.dynamic("n")

    @T.prim_func  # type: ignore[untyped-decorator, unused-ignore]
    def copy(
        A: T.Tensor((256, n), "bfloat16"),  # type: ignore[valid-type]  # noqa: N803
        B: T.Tensor((256, n), "bfloat16"),  # type: ignore[valid-type]  # noqa: N803
    ):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(n, 64), threads=128) as b:
            tile = T.alloc_shared((256, 64), "bfloat16")
            T.copy(A[0, b * 64], tile)
            T.copy(tile, B[0, b * 64])

    lowered = replace(lower(copy, load_target("h200")), sizes=(n,))
    with pytest.raises(
        UnsupportedLaunchError,
        match=r"stride of '.*' bytes, which need not be whole 16s: give that dimension a fixed size",
    ):
        read_plan(lowered)


def test_a_size_that_is_no_dynamic_dimension_is_refused() -> None:
    lowered: Any = lower_candidate(candidate("h200", "m=777,n=1024,k=512", "m"))
    with pytest.raises(UnsupportedLaunchError, match="only dynamic dimensions may vary"):
        read_plan(replace(lowered, sizes=()))


def test_a_dimension_that_cannot_be_dynamic_is_a_failed_build(tmp_path: Path) -> None:
    failure = build_kernel(candidate("h200", "m=777,n=1024,k=512", "n"), tmp_path, runnable=False).failure
    assert failure is not None
    if failure.kind is FailureKind.BUILD_ERROR:
        assert "was not found" in failure.message, "no compiler here"
    else:
        assert "n cannot be dynamic in matmul: rows of B and C" in failure.message


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedKernel:
    built = build_kernel(candidate("cpu", "m=77,n=40,k=24", "m", "k"), tmp_path_factory.mktemp("cache"))
    assert built.artifact is not None, built.failure
    return LoadedKernel(built.artifact, built.entry)


def tensors(m: int, k: int) -> list[torch.Tensor]:
    return [torch.ones(m, k), torch.ones(k, 40), torch.full((m, 40), torch.nan)]


def test_one_library_computes_every_size(loaded: LoadedKernel) -> None:
    assert (loaded.arity, loaded.sizes) == (3, 2)
    for m, k in ((1, 1), (77, 24), (5, 700), (300, 3)):
        given = tensors(m, k)
        loaded.bind(given, 0, (m, k))()
        assert (given[-1] == k).all(), (m, k)


@pytest.mark.parametrize(
    ("m", "k", "message"),
    [
        (0, 24, "m=0 must lie in 1 .. 2147418112"),
        (-1, 24, "m=-1 must lie in 1 .. "),
        (2**40, 24, f"m={2**40} must lie in 1 .. "),
        (5, 0, "k=0 must lie in 1 .. "),
        (2**20, 2**20, r"A would have more than 2147483648 elements at m=1048576, k=1048576"),
    ],
)
def test_invalid_sizes_are_refused_before_the_launch(
    loaded: LoadedKernel, m: int, k: int, message: str
) -> None:
    given = tensors(5, 24)
    with pytest.raises(LaunchError, match=message):
        loaded.bind(given, 0, (m, k))()
    assert given[-1].isnan().all()


def test_a_wrong_number_of_sizes_is_refused(loaded: LoadedKernel) -> None:
    with pytest.raises(ValueError, match="takes 2 sizes and numbers, and was given 0"):
        loaded.bind(tensors(5, 24))


def test_the_bare_call_takes_an_array_of_addresses_and_sizes(loaded: LoadedKernel) -> None:
    import ctypes

    given = tensors(9, 8)
    arguments = (ctypes.c_void_p * 5)(*(t.data_ptr() for t in given), 9, 8)
    assert loaded.launch(ctypes.addressof(arguments), 0) == 0
    assert (given[-1] == 8).all()
    arguments[3] = 0
    status = loaded.launch(ctypes.addressof(arguments), 0)
    with pytest.raises(LaunchError, match="m=0"):
        loaded.check(status)
