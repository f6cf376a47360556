"""Parametric profiles of shipped kernels: at another shape they equal the profiles of a lowering there."""

from __future__ import annotations

from functools import cache

import pytest

from tilesight import kernels
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.executor.shared_lowering import with_rasterization
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.profile.inference import PROBES, LawInference
from tilesight.profile.parametric import ParametricProfile, parametric_profile_of
from tilesight.profile.shape_class import ShapeClass
from tilesight.profile.values import KernelProfile
from tilesight.target.spec import Target, load_target

EXACT = 1e-3  # of predicted times
SAMPLED = 1e-2  # where the reader samples which blocks lie at an edge or on a diagonal

MATMUL = "block_m=128,block_n=128,block_k=64,num_stages=3,threads=256,policy=square,epilogue=shared,swizzle=0"
UNEVEN = "block_m=128,block_n=192,block_k=64,num_stages=3,threads=256,policy=square,epilogue=shared,swizzle=0"
ATTENTION = "block_m=128,block_n=128,num_stages=2,threads=256,block_order=by_head"
GEMV = "block_n=8,threads=128,reduce_threads=32,vector=8,unroll=2,num_stages=0"
RMS_NORM = "block_m=4,threads=64,reduce_threads=32,vector=4,keep=global,unroll=2"
STATE = (
    "block_p=32,block_n=64,block_k=32,num_stages=2,threads=256,policy=square,scaled_x=registers,copies=bulk"
)
OTHER_STATE = "batch=8,seq_len=5120,nheads=80,head_dim=64,d_state=128"
LONG_STATE = "batch=3,seq_len=16384,nheads=7,head_dim=64,d_state=128"
DEQUANT = (
    "block_m=128,block_n=128,block_k=64,num_stages=3,threads=256,"
    "weights=shared,decode=bits,policy=square,swizzle=0"
)

CASES = [
    pytest.param("matmul", "h200", MATMUL, "M0", ["M5", "m=1280,n=4352,k=640"], EXACT, id="matmul"),
    pytest.param(
        "matmul", "h200", UNEVEN, "M0", ["M5"], SAMPLED, id="matmul at an edge", marks=pytest.mark.full
    ),
    pytest.param("gemv", "h200", GEMV, "V0", ["n=9216,k=16384"], EXACT, id="gemv"),
    pytest.param("rms_norm", "h200", RMS_NORM, "m=4096,n=4096", ["m=1280,n=4096"], EXACT, id="rms_norm"),
    pytest.param(
        "chunk_state",
        "h200",
        STATE,
        OTHER_STATE,
        [LONG_STATE],
        EXACT,
        id="chunk_state",
        marks=pytest.mark.full,
    ),
    pytest.param(
        "dequant_matmul",
        "h200",
        DEQUANT,
        "m=4096,n=4096,k=8192",
        ["m=2048,n=6144,k=4096"],
        EXACT,
        id="dequant_matmul",
    ),
    pytest.param(
        "flash_attention",
        "h200",
        ATTENTION,
        "FA4",
        ["batch=1,heads=8,seq_len=8192,head_dim=128,causal=true", "FA2"],
        SAMPLED,
        id="causal",
        marks=pytest.mark.full,
    ),
]


@cache  # the shape that laws are inferred from is also one of those that are compared
def profiles(kernel: str, workload: Workload, config: Config, target: Target) -> tuple[KernelProfile, ...]:
    pytest.importorskip("tilelang")
    from tilesight.costmodel.extract import read_profiles
    from tilesight.lowering.lower import lower

    template = kernels.template_for(kernel, target, workload.dtype)
    return read_profiles(lower(template.build(workload, config), target, only_read=True), target)


@cache
def inferred(kernel: str, workload: Workload, config: Config, target: Target) -> ParametricProfile:
    inference = LawInference(ShapeClass(kernels.template_for(kernel, target, workload.dtype), workload))
    profile = inference.first_profile(
        config, workload.dims, "code", profiles(kernel, workload, config, target)
    )
    probed = [
        profiles(kernel, inference.shape_class.probe(number), config, target) for number in range(PROBES)
    ]
    found = inference.infer_laws(profile, probed)
    assert found.laws is not None, "no law explains its numbers"
    return parametric_profile_of(found.text())


@pytest.mark.parametrize(("kernel", "target_name", "text", "shape", "others", "error"), CASES)
def test_parametric_profiles_predict_what_lowering_would(
    kernel: str, target_name: str, text: str, shape: str, others: list[str], error: float
) -> None:
    target, operator, model = load_target(target_name), kernels.operator(kernel), AnalyticalModel()
    workload = operator.workload(shape)
    template = kernels.template_for(kernel, target, workload.dtype)
    config = template.space(workload, target).read(text)
    profile = inferred(kernel, workload, config, target)
    for name in [shape, *others]:
        there = operator.workload(name)
        assert ShapeClass(template, there).key == ShapeClass(template, workload).key
        kept, fresh = profile.kernels(there.dims), profiles(kernel, there, config, target)
        assert kept is not None
        assert [k.grid for k in kept] == [k.grid for k in fresh]
        assert model.predict(kept, target).latency_us == pytest.approx(
            model.predict(fresh, target).latency_us, rel=error
        )
        if error == EXACT:
            assert kept == fresh


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_loops_that_are_too_short_are_refused_or_right(depth: int) -> None:
    """Pipelines fold into straight code where a loop is shorter than they are deep."""
    target, operator = load_target("h200"), kernels.operator("matmul")
    workload = operator.workload("M0")
    config = kernels.template_for("matmul", target, workload.dtype).space(workload, target).read(MATMUL)
    profile = inferred("matmul", workload, config, target)
    there = operator.workload(f"m=4096,n=1024,k={64 * depth}")
    kept = profile.kernels(there.dims)
    assert kept is None or kept == profiles("matmul", there, config, target)


@pytest.mark.parametrize(
    ("name", "target_name", "shapes"),
    [
        ("matmul", "h200", ("M0", "m=1000,n=1000,k=1000")),
        pytest.param("matmul", "mi300x", ("m=1000,n=1000,k=1000",), marks=pytest.mark.full),
        ("dequant_matmul", "h200", ("m=4096,n=4096,k=1024",)),
    ],
)
def test_reordered_blocks_change_nothing_else(name: str, target_name: str, shapes: tuple[str, ...]) -> None:
    from tilesight.executor.tasks import Profiled

    target, operator = load_target(target_name), kernels.operator(name)
    for shape in shapes:
        workload = operator.workload(shape)
        template = kernels.template_for(name, target, workload.dtype)
        space = template.space(workload, target)
        # blocks that stay and clusters walk over the tiles in an order of their own
        config = next(c for c in space.sample(50, seed=2) if template.reordered(c) is not None)
        found = template.reordered(config)
        assert found is not None
        base, order = found
        assert base in space
        shared = with_rasterization(Profiled(profiles(name, workload, base, target), "code", 0.0), order)
        assert shared.kernels == profiles(name, workload, config, target)
