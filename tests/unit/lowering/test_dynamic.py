"""Kernels with dynamic dimensions: their IR at given sizes, profiles of it, and profiles over all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.errors import InputError, WorkloadError
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import at, lower_candidate
from tilesight.lowering.lower import Lowered
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.profile.inference import PROBES, LawInference
from tilesight.profile.parametric import ParametricProfile, parametric_profile_of
from tilesight.profile.shape_class import ShapeClass
from tilesight.target.spec import load_target

pytest.importorskip("tilelang")
MODEL = AnalyticalModel()
ATTENTION: dict[str, int | str] = {
    "block_m": 128,
    "block_n": 128,
    "num_stages": 2,
    "threads": 256,
    "block_order": "by_length",
}


def candidate(
    name: str, target: str, shape: str, *dims: str, config: dict[str, int | str] | None = None
) -> Candidate:
    found = load_target(target)
    workload = operator(name).workload(shape, "bfloat16" if found.is_gpu else "float32")
    template = template_for(name, found, workload.dtype)
    chosen = Config(config) if config else template.default_config(workload, found)
    assert chosen is not None
    return Candidate(workload, found, template, chosen, dims)


LOWERED: dict[object, Lowered] = {}


@pytest.fixture
def one_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lowering for all sizes of dynamic dimensions: `lower_candidate` gives `build` variables instead.

    That the code is the same for all sizes is tested without this fixture.
    """

    def shared(asked: Candidate, *, only_read: bool = False) -> Lowered:
        workload, dynamic = asked.workload, asked.dynamic
        fixed = tuple((dim, size) for dim, size in workload.dims.items() if dim not in dynamic)
        kernel = (asked.template.name, asked.target.name, asked.config, dynamic)
        key = (*kernel, workload.dtype, tuple(workload.attrs.items()), fixed, only_read)
        if key not in LOWERED:
            LOWERED[key] = lower_candidate(asked, only_read=only_read)
        return LOWERED[key]

    monkeypatch.setattr("tilesight.lowering.dynamic.lower_candidate", shared)


def profiled(asked: Candidate) -> Profiled:
    found = lower_and_profile(asked)
    assert isinstance(found, Profiled), found
    return found


@pytest.mark.usefixtures("one_lowering")
@pytest.mark.parametrize(
    ("name", "target", "shape", "dims"),
    [
        ("matmul", "h200", "m=777,n=1024,k=512", ("m",)),
        ("matmul", "cpu", "m=77,n=130,k=70", ("m", "n", "k")),
        ("flash_attention", "h200", "batch=2,heads=4,seq_len=777,head_dim=64", ("seq_len",)),
        ("rms_norm", "h200", "m=77,n=4096", ("m",)),
        pytest.param("dequant_matmul", "h200", "m=777,n=1024,k=512", ("m",), marks=pytest.mark.full),
        pytest.param(
            "chunk_state",
            "h200",
            "batch=2,seq_len=700,nheads=4,head_dim=64,d_state=128",
            ("batch", "seq_len", "nheads"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_its_prediction_is_near_that_of_the_static_kernel(
    name: str, target: str, shape: str, dims: tuple[str, ...]
) -> None:
    """Where a dimension is cut with a rest both have the same predicates."""
    asked = candidate(name, target, shape, *dims)
    open_kernel, static = profiled(asked), profiled(replace(asked, dynamic=()))
    assert open_kernel.fingerprint != static.fingerprint
    if asked.target.is_gpu:
        times = [MODEL.predict(found.kernels, asked.target).latency_us for found in (open_kernel, static)]
        assert times[0] == pytest.approx(times[1], rel=0.02)
        assert [t.bytes for t in open_kernel.kernels[0].tensors] == [
            t.bytes for t in static.kernels[0].tensors
        ]
    if name == "matmul" and target == "h200":
        assert open_kernel.kernels == static.kernels


def test_the_fingerprint_is_that_of_the_code_for_all_sizes() -> None:
    one = candidate("matmul", "h200", "m=777,n=1024,k=512", "m", config=MATMUL_TILE)
    other = replace(one, workload=operator("matmul").workload("m=16,n=1024,k=512"))
    assert profiled(one).fingerprint == profiled(other).fingerprint
    assert profiled(one).kernels != profiled(other).kernels


def test_a_kernel_without_open_dimensions_is_what_it_was() -> None:
    lowered = lower_candidate(candidate("matmul", "h200", "m=777,n=1024,k=512", config=MATMUL_TILE))
    assert at(lowered, {"m": 777, "n": 1024, "k": 512}) is lowered


def test_what_cannot_be_open_is_said() -> None:
    with pytest.raises(InputError, match="k cannot be dynamic in matmul: rows of A are k elements apart"):
        lower_candidate(candidate("matmul", "h200", "m=777,n=1024,k=512", "k", config=MATMUL_TILE))


def test_workloads_that_are_measured_still_are_whole_numbers() -> None:
    with pytest.raises(WorkloadError):
        operator("matmul").workload("m=m,n=1024,k=512")


# profiles


def profile_and_class(asked: Candidate) -> tuple[ParametricProfile, ShapeClass]:
    """A profile with laws, inferred as by `CachingExecutor`: from the candidate and two probes."""
    shape_class = ShapeClass(asked.template, asked.workload, asked.dynamic)
    inference = LawInference(shape_class)
    lowered = profiled(asked)
    profile = inference.first_profile(asked.config, asked.workload.dims, lowered.fingerprint, lowered.kernels)
    probes = [
        profiled(replace(asked, workload=shape_class.probe(number))).kernels for number in range(PROBES)
    ]
    found = inference.infer_laws(profile, probes)
    assert found.laws is not None, "no law explains its numbers"
    read = parametric_profile_of(found.text())
    assert read == found
    return read, shape_class


@pytest.mark.usefixtures("one_lowering")
def test_a_profile_of_an_open_m_is_right_for_every_m() -> None:
    asked = candidate("matmul", "h200", "m=777,n=1024,k=512", "m", config=MATMUL_TILE)
    profile, shape_class = profile_and_class(asked)
    fingerprints = set()
    for m in (1, 127, 128, 1000, 16384):
        workload = operator("matmul").workload(f"m={m},n=1024,k=512")
        assert ShapeClass(asked.template, workload, ("m",)).key == shape_class.key
        kept, fresh = profile.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        assert [kernel.grid for kernel in kept] == [kernel.grid for kernel in fresh.kernels]
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        # below one tile, of which there was no sample, the profile does not know of the missing rows
        assert times[0] == pytest.approx(times[1], rel=0.01 if m >= asked.config.int("block_m") else 0.03), m
        fingerprints.add(profile.fingerprint(workload.dims))
    assert fingerprints == {profiled(asked).fingerprint}, "one code for all"


@pytest.mark.usefixtures("one_lowering")
@pytest.mark.parametrize("reduce", ["kernel", "cluster"])
def test_a_profile_of_parts_of_k_is_right_at_other_sizes(reduce: str) -> None:
    parts = {"block_m": 64, "threads": 128, "split_k": 2, "reduce": reduce}
    config = Config({**MATMUL_TILE, **{k: v for k, v in parts.items() if v != "kernel"}})
    asked = candidate("matmul", "h200", "m=100,n=6144,k=4096", "m", config=config)
    profile, _ = profile_and_class(asked)
    # in the last one 129 steps are dealt: one part has a step that reads zeros
    for shape in ("m=700,n=3072,k=8192", "m=64,n=9216,k=1024", "m=700,n=3072,k=8256"):
        workload = operator("matmul").workload(shape)
        kept, fresh = profile.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        assert [kernel.grid for kernel in kept] == [kernel.grid for kernel in fresh.kernels]
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        assert times[0] == pytest.approx(times[1], rel=0.02), shape


@pytest.mark.usefixtures("one_lowering")
@pytest.mark.parametrize("cluster", [{}, {"cluster_m": 2}])
def test_a_profile_of_blocks_that_stay_is_right_at_other_sizes(cluster: dict[str, int]) -> None:
    stays = {"block_m": 128, "block_n": 192, "num_stages": 3, "epilogue": "shared"}
    stays |= {"schedule": "overlapped", "persistent": 132, "swizzle": 8, "policy": "full_row", **cluster}
    asked = candidate("matmul", "h200", "m=4096,n=6144,k=4096", "m", config=Config({**MATMUL_TILE, **stays}))
    profile, _ = profile_and_class(asked)
    # less than a turn, the first and the last size of a turn, and many turns
    for shape in ("m=64,n=4096,k=1024", "m=768,n=4096,k=1024", "m=769,n=4096,k=1024", "m=9029,n=5120,k=8192"):
        workload = operator("matmul").workload(shape)
        kept, fresh = profile.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        assert times[0] == pytest.approx(times[1], rel=1e-6), shape


@pytest.mark.full
@pytest.mark.usefixtures("one_lowering")
def test_a_profile_of_an_open_sequence_is_near_for_every_length() -> None:
    asked = candidate(
        "flash_attention",
        "h200",
        "batch=1,heads=8,seq_len=1024,head_dim=128,causal=true",
        "seq_len",
        config=ATTENTION,
    )
    profile, _ = profile_and_class(asked)
    for seq_len in (100, 4000):
        workload = operator("flash_attention").workload(
            f"batch=1,heads=8,seq_len={seq_len},head_dim=128,causal=true"
        )
        kept, fresh = profile.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        assert times[0] == pytest.approx(times[1], rel=0.05), seq_len


def test_open_and_static_kernels_have_classes_of_their_own() -> None:
    asked = candidate("matmul", "h200", "m=4096,n=1024,k=512", "m", config=MATMUL_TILE)
    keys = {ShapeClass(asked.template, asked.workload, dims).key for dims in ((), ("m",))}
    assert len(keys) == 2
    small = operator("matmul").workload("m=3,n=1024,k=512")
    assert ShapeClass(asked.template, small, ("m",)).key in keys
    assert "m" in ShapeClass(asked.template, small, ("m",)).free
    assert "m" not in ShapeClass(asked.template, small).free
