"""Findings name the tensors, buffers, fragments and loops of a kernel, with the share of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilesight
from tests.unit.explanation import named_kernels
from tilesight.api.foreign_kernel import ForeignKernel, named_profiles_of
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.headroom import is_synchronous, limits
from tilesight.costmodel.extract import read_named_profiles, read_profiles
from tilesight.explanation import Explanation, view
from tilesight.explanation.buffers import MOST_NAMED
from tilesight.explanation.wide_sigma import why_wide
from tilesight.lowering.lower import lower
from tilesight.profile.names import KernelNames, NamedLoop
from tilesight.profile.values import KernelProfile
from tilesight.records.trial import Prediction
from tilesight.target.spec import load_target

H100, A100 = load_target("h100"), load_target("a100")


def read(prim_func: Any, target: Any = H100) -> tuple[KernelProfile, KernelNames]:
    (found,) = named_profiles_of(ForeignKernel("kernel", prim_func), target)
    return found


def finding(found: Explanation, begin: str) -> str:
    (sentence,) = [text for text in found.this.findings if text.startswith(begin)]
    return sentence


def test_names_of_tensors_buffers_and_loops() -> None:
    profile, names = read(named_kernels.product())
    tensors = {names.buffers[t.label] for t in profile.tensors}
    assert tensors == {"left", "right", "result"}
    touched = {names.buffers[a.tensor] for r in profile.roles for p in r.phases for a in p.work.accesses}
    assert touched == {"left", "right", "result", "left_tile", "right_tile"}
    assert names.loops == (NamedLoop("step", 64.0, ("left", "right")),)
    assert names.loop(64.0) == "step"


@pytest.mark.parametrize("stages", [0, 3])
def test_registers_of_fragments_are_those_of_the_profile(stages: int) -> None:
    profile, names = read(named_kernels.product(stages))
    assert len(names.registers) == len(profile.roles)
    for role, held in zip(profile.roles, names.registers, strict=True):
        assert sum(held.values()) == pytest.approx(role.local_registers)
        assert list(held.values()) == sorted(held.values(), reverse=True)
    assert {"total": 128.0}.items() <= max(names.registers, key=len).items()


def test_a_profile_is_the_same_with_its_names() -> None:
    lowered = lower(named_kernels.product(), H100, only_read=True)
    assert tuple(p for p, _ in read_named_profiles(lowered, H100)) == read_profiles(lowered, H100)


def test_bank_conflicts_name_the_buffer() -> None:
    found = tilesight.explain(named_kernels.turned(), "h100")
    sentence = finding(found, "Bank conflicts")
    assert "times the necessary wavefronts: reads of tile 32.0 times (100% of the excess)." in sentence


def test_partial_sectors_name_the_tensor_and_its_share() -> None:
    found = tilesight.explain(named_kernels.columns(), "h100")
    sentence = finding(found, "Global accesses touch")
    assert "sectors: reads of matrix 2.0 times (100% of the excess). If all" in sentence
    assert "weights" not in sentence, "its reads need all the sectors that they touch"
    matrix, weights = (next(b for b in found.this.buffers if b.name == n) for n in ("matrix", "weights"))
    assert matrix.transactions == pytest.approx(2 * matrix.least_transactions)
    assert weights.transactions == pytest.approx(weights.least_transactions)


def test_traffic_names_tensors_and_how_often_they_are_read() -> None:
    found = tilesight.explain(named_kernels.product(size=4096), "h100")
    of_l2 = finding(found, "Between the cores and L2 move")
    for name in ("left", "right"):  # each tile is read by the 32 blocks of a row or a column
        assert f"reads of {name} 1,073.7 MB (48%, 32.0 times its 33.6 MB)" in of_l2
    of_dram = finding(found, "Device memory moves")
    assert "writes of result 33.6 MB" in of_dram
    expected = found.this.prediction.expected
    assert sum(b.l2_bytes for b in found.this.buffers) == pytest.approx(expected["l2_bytes"])
    read = sum(b.dram_bytes for b in found.this.buffers if not b.is_write)
    assert read == pytest.approx(expected["dram_read_bytes"])


def test_spills_name_the_fragments() -> None:
    found = tilesight.explain(named_kernels.crowded(), "h100")
    sentence = finding(found, "Spills")
    assert "do not fit (registers a thread: decayed 256, fresh 256)" in sentence
    assert found.this.requested[0].registers["fresh"] == 256


def test_registers_that_limit_the_blocks_have_names() -> None:
    found = tilesight.explain(named_kernels.product(), "h100")
    assert "registers allow no more (registers a thread: total 128)." in finding(found, "Each SM holds")


def test_without_names_findings_say_what_they_did() -> None:
    profile, names = read(named_kernels.turned())
    prediction = AnalyticalModel().predict([profile], H100)
    told, untold = (view([profile], prediction, H100, names=n).findings for n in ((names,), ()))
    assert any("reads of tile" in text for text in told)
    assert not any("tile" in text or "source" in text for text in untold)
    assert any("necessary wavefronts. Without conflicts" in text for text in untold)
    assert {b.name for b in view([profile], prediction, H100).buffers} == {""}


def test_at_most_some_are_named() -> None:
    profile, names = read(named_kernels.product())
    many = {f"part_{i}": 20.0 for i in range(9)}
    prediction = AnalyticalModel().predict([profile], H100)
    found = view([profile], prediction, H100, names=[replace(names, registers=(many,))])
    (sentence,) = [text for text in found.findings if "registers a thread" in text]
    assert sentence.count("part_") == MOST_NAMED


# ---- copies that nothing overlaps


@pytest.mark.parametrize("target", ["h100", "a100"])
def test_a_loop_that_copies_synchronously_is_named(target: str) -> None:
    found = tilesight.explain(named_kernels.product(0), target)
    sentence = finding(found, "The loop over step (64 iterations) copies left and right to shared memory")
    assert "its copies are not overlapped with its products. If they were, " in sentence
    waste = next(w for w in found.this.limits.wastes if w.name == "synchronous copies")
    assert waste.gain > 0.1
    assert f"{waste.without_us:.4g} us would remain (-{waste.gain:.0%})" in sentence


def test_other_stores_to_shared_memory_do_not_matter() -> None:
    found = tilesight.explain(named_kernels.two_products(), "h100")
    sentence = finding(found, "The loop over block (64 iterations) copies K and V to shared memory")
    assert "If they were, " in sentence


@pytest.mark.parametrize("target", ["h100", "a100"])
def test_a_pipelined_loop_is_not(target: str) -> None:
    found = tilesight.explain(named_kernels.product(3), target)
    assert not any("not overlapped" in text for text in found.this.findings)
    assert next(w for w in found.this.limits.wastes if w.name == "synchronous copies").gain == 0


def test_a_loop_that_holds_the_next_tile_in_registers_is_not() -> None:
    found = tilesight.explain(named_kernels.held_over(), "a100")
    assert not any("not overlapped" in text for text in found.this.findings)


def test_what_would_remain_is_the_time_of_the_pipelined_loop() -> None:
    """By the model: the loop whose copies are overlapped, against the same kernel with stages."""
    serial, pipelined = (read(named_kernels.product(stages), A100)[0] for stages in (0, 4))
    assert any(is_synchronous(phase) for role in serial.roles for phase in role.phases)
    whole_us, staged_us = (AnalyticalModel().predict([p], A100).latency_us for p in (serial, pipelined))
    found = next(w for w in limits([serial], A100, whole_us).wastes if w.name == "synchronous copies")
    assert staged_us < 0.8 * whole_us
    assert found.without_us == pytest.approx(staged_us, rel=0.1)


def test_a_pipeline_of_one_buffer_names_its_loop() -> None:
    found = tilesight.explain(named_kernels.product(1), "h100")
    sentence = finding(found, "Pipeline")
    assert "1 iteration in flight in the loop over step, whose copies are not overlapped" in sentence


# ---- why sigma is wide


def wide(kernel: KernelProfile, sigma: float = 1.1, notes: tuple[str, ...] = ()) -> str:
    prediction = replace(AnalyticalModel().predict([kernel], H100), uncertainty=sigma, notes=notes)
    return why_wide(prediction, [kernel], H100)


def test_causes_of_a_wide_sigma() -> None:
    plain, _ = read(named_kernels.product(3))
    assert wide(plain, 0.4) == ""
    assert "the model knows no single cause" in wide(plain)
    crowded, _ = read(named_kernels.crowded())
    assert wide(crowded).startswith("Sigma is wide because registers spill")
    unknown = replace(plain, unknown_calls=("decode", "scale", "pack", "shift"))
    assert "calls are not understood (decode, scale, pack and 1 more)" in wide(unknown)
    assumed = replace(plain, notes=("a loop was taken for 8 iterations",))
    assert "the IR does not say (a loop was taken for 8 iterations)" in wide(assumed)
    unlike = ("unlike the kernels that the learned model has seen: 6% of its correction is left",)
    assert "it is unlike the kernels" in wide(plain, notes=unlike)


def test_a_wide_sigma_is_a_factor_with_its_causes() -> None:
    found = tilesight.explain(named_kernels.crowded(), "h100")
    sigma = found.this.prediction.uncertainty
    assert sigma > 0.5
    text = str(found)
    assert f"within a factor of {1 + sigma:.1f} in about two of three cases" in " ".join(text.split())
    assert "give or take" not in text
    assert any(text.startswith("Sigma is wide because registers spill") for text in found.this.caveats)
    assert "within a factor of 2.1" in repr(Prediction(300.0, {}, "dram", uncertainty=1.08))
    assert "± 20.0 %" in repr(Prediction(300.0, {}, "dram", uncertainty=0.2))
