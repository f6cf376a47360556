"""Kernels with open dimensions: their IR at given sizes, profiles of it, and families over all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesight.candidate import Candidate
from tilesight.costmodel.analytical import AnalyticalModel
from tilesight.errors import InputError, WorkloadError
from tilesight.families import ProfileFamily, family_of
from tilesight.jobs import Profiled, lower_and_profile
from tilesight.kernels import operator, template_for
from tilesight.lessons import PROBES, Lessons
from tilesight.open_dims import at, lower_candidate
from tilesight.shape_class import ShapeClass
from tilesight.space import Config
from tilesight.target import load_target

pytest.importorskip("tilelang")
MODEL = AnalyticalModel()
MATMUL: dict[str, int | str] = {
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "num_stages": 3,
    "threads": 256,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
}
ATTENTION: dict[str, int | str] = {"block_m": 128, "block_n": 128, "num_stages": 2, "threads": 256, "block_order": "by_length"}


def candidate(name: str, target: str, shape: str, *dims: str, config: dict[str, int | str] | None = None) -> Candidate:
    found = load_target(target)
    workload = operator(name).workload(shape, "bfloat16" if found.is_gpu else "float32")
    template = template_for(name, found, workload.dtype)
    chosen = Config(config) if config else template.default_config(workload, found)
    assert chosen is not None
    return Candidate(workload, found, template, chosen, dims)


def profiled(asked: Candidate) -> Profiled:
    found = lower_and_profile(asked)
    assert isinstance(found, Profiled), found
    return found


@pytest.mark.parametrize(
    ("name", "target", "shape", "dims"),
    [
        ("matmul", "h200", "m=777,n=1024,k=512", ("m",)),
        ("matmul", "mi300x", "m=777,n=1024,k=512", ("m",)),
        ("matmul", "cpu", "m=77,n=130,k=70", ("m", "n", "k")),
        ("flash_attention", "h200", "batch=2,heads=4,seq_len=777,head_dim=64", ("seq_len",)),
        ("gemv", "h200", "n=777,k=4096", ("n",)),
        ("rms_norm", "h200", "m=77,n=4096", ("m",)),
        ("dequant_matmul", "h200", "m=777,n=1024,k=512", ("m",)),
        ("chunk_state", "h200", "batch=2,seq_len=700,nheads=4,head_dim=64,d_state=128", ("batch", "seq_len", "nheads")),
    ],
)
def test_its_prediction_is_near_that_of_the_static_kernel(name: str, target: str, shape: str, dims: tuple[str, ...]) -> None:
    """Where a dimension is cut with a rest both have the same predicates."""
    asked = candidate(name, target, shape, *dims)
    open_kernel, static = profiled(asked), profiled(replace(asked, open=()))
    assert open_kernel.fingerprint != static.fingerprint
    if asked.target.is_gpu:
        times = [MODEL.predict(found.kernels, asked.target).latency_us for found in (open_kernel, static)]
        assert times[0] == pytest.approx(times[1], rel=0.02)
        assert [t.bytes for t in open_kernel.kernels[0].tensors] == [t.bytes for t in static.kernels[0].tensors]
    if name == "matmul" and target == "h200":
        assert open_kernel.kernels == static.kernels


def test_the_fingerprint_is_that_of_the_code_for_all_sizes() -> None:
    one = candidate("matmul", "h200", "m=777,n=1024,k=512", "m", config=MATMUL)
    other = replace(one, workload=operator("matmul").workload("m=16,n=1024,k=512"))
    assert profiled(one).fingerprint == profiled(other).fingerprint
    assert profiled(one).kernels != profiled(other).kernels


def test_a_kernel_without_open_dimensions_is_what_it_was() -> None:
    lowered = lower_candidate(candidate("matmul", "h200", "m=777,n=1024,k=512", config=MATMUL))
    assert at(lowered, {"m": 777, "n": 1024, "k": 512}) is lowered


def test_what_cannot_be_open_is_said() -> None:
    with pytest.raises(InputError, match="k cannot be open in matmul: rows of A are k elements apart"):
        lower_candidate(candidate("matmul", "h200", "m=777,n=1024,k=512", "k", config=MATMUL))


def test_workloads_that_are_measured_still_are_whole_numbers() -> None:
    with pytest.raises(WorkloadError):
        operator("matmul").workload("m=m,n=1024,k=512")


# families


def family_and_class(asked: Candidate) -> tuple[ProfileFamily, ShapeClass]:
    """Learned as `KeptExecutor` learns it: where it was asked for, and at two probes."""
    shape_class = ShapeClass(asked.template, asked.workload, asked.open)
    lessons = Lessons(shape_class)
    lowered = profiled(asked)
    family = lessons.begin(asked.config, asked.workload.dims, lowered.fingerprint, lowered.kernels)
    probes = [profiled(replace(asked, workload=shape_class.probe(number))).kernels for number in range(PROBES)]
    found = lessons.learn(family, probes)
    assert found.rules is not None, "no rule explains its numbers"
    read = family_of(found.text())
    assert read == found
    return read, shape_class


def test_a_family_of_an_open_m_is_right_for_every_m() -> None:
    asked = candidate("matmul", "h200", "m=777,n=1024,k=512", "m", config=MATMUL)
    family, shape_class = family_and_class(asked)
    fingerprints = set()
    for m in (1, 16, 127, 128, 129, 777, 1000, 4096, 16384):
        workload = operator("matmul").workload(f"m={m},n=1024,k=512")
        assert ShapeClass(asked.template, workload, ("m",)).key == shape_class.key
        kept, fresh = family.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        assert [kernel.grid for kernel in kept] == [kernel.grid for kernel in fresh.kernels]
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        # below one tile the family, which saw none, knows nothing of the rows that it lacks
        assert times[0] == pytest.approx(times[1], rel=0.01 if m >= asked.config.int("block_m") else 0.03), m
        fingerprints.add(family.fingerprint(workload.dims))
    assert fingerprints == {profiled(asked).fingerprint}, "one code for all"


def test_a_family_of_an_open_sequence_is_near_for_every_length() -> None:
    asked = candidate("flash_attention", "h200", "batch=1,heads=8,seq_len=1024,head_dim=128,causal=true", "seq_len", config=ATTENTION)
    family, _ = family_and_class(asked)
    for seq_len in (100, 129, 512, 4000):
        workload = operator("flash_attention").workload(f"batch=1,heads=8,seq_len={seq_len},head_dim=128,causal=true")
        kept, fresh = family.kernels(workload.dims), profiled(replace(asked, workload=workload))
        assert kept is not None
        times = [MODEL.predict(found, asked.target).latency_us for found in (kept, fresh.kernels)]
        assert times[0] == pytest.approx(times[1], rel=0.05), seq_len


def test_open_and_static_kernels_have_classes_of_their_own() -> None:
    asked = candidate("matmul", "h200", "m=4096,n=1024,k=512", "m", config=MATMUL)
    keys = {ShapeClass(asked.template, asked.workload, dims).key for dims in ((), ("m",))}
    assert len(keys) == 2
    small = operator("matmul").workload("m=3,n=1024,k=512")
    assert ShapeClass(asked.template, small, ("m",)).key in keys
    assert "m" in ShapeClass(asked.template, small, ("m",)).free
    assert "m" not in ShapeClass(asked.template, small).free
