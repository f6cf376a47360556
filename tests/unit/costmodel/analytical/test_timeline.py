"""The timeline of a kernel has the numbers of its prediction."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.golden import golden
from tests.unit.costmodel.analytical.test_pipeline import FED, specialised
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.analytical.demand import RESOURCES
from tilesight.costmodel.analytical.schedule import last_place, list_makespan
from tilesight.costmodel.analytical.timeline import UNITS
from tilesight.costmodel.learned.hybrid import CORRECTION
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.explanation.kernel_timeline import kernel_timeline
from tilesight.kernels import operator, template_for
from tilesight.problem.candidate import Candidate
from tilesight.profile.codec import read_profile
from tilesight.profile.values import Access, KernelProfile, LibraryCollective, Role, Space
from tilesight.records.timeline import TimelinePart, View
from tilesight.records.trial import Prediction
from tilesight.target.spec import Target, load_target

MODEL, H200, PAIR = AnalyticalModel(), load_target("h200"), load_target("h200x2")
GPU_CASES = [case for case, (target, _, _) in golden.CASES.items() if target != "cpu"]
# blocks that send what others of the same kernel wait for
PUSH = (
    "algorithm=push,block_k=64,block_m=128,block_n=128,chunk_rows=32,epilogue=shared,num_stages=3,"
    "persistent=132,policy=full_row,schedule=overlapped,senders=2,swizzle=0,threads=256"
)
# the parts of a sum differ from it by their rounding
EXACT = 1e-6


def stored(case: str) -> tuple[list[KernelProfile], Target]:
    text = (golden.PROFILES / f"{case}.json").read_text(encoding="utf-8")
    kernels = [read_profile(kernel) for kernel in json.loads(text)["kernels"]]
    return kernels, load_target(golden.CASES[case][0])


def lowered(kernel: str, shape: str, target: Target, given: str = "") -> Sequence[KernelProfile]:
    """The profiles of a config; "": the default."""
    template = template_for(kernel, target, "bfloat16")
    workload = operator(kernel).workload(shape, "bfloat16")
    space = template.space(workload, target)
    config = space.read(given) if given else template.default_config(workload, target)
    assert config is not None
    found = lower_and_profile(Candidate(workload, target, template, config))
    assert isinstance(found, Profiled)
    return found.kernels


def check_sums(kernels: Sequence[KernelProfile], target: Target) -> list[TimelinePart]:
    """The parts, whose rows add up to what the model states."""
    parts = MODEL.timeline(kernels, target)
    prediction = MODEL.predict(kernels, target)
    assert parts[0].us == pytest.approx(prediction.latency_us, rel=EXACT)
    of_kernels = [part for part in parts if part.view is View.KERNEL]
    assert sum(part.us for part in of_kernels[-len(kernels) :]) == pytest.approx(
        prediction.latency_us, rel=EXACT
    )
    assert len({(part.view, part.title) for part in parts}) == len(parts)
    for part in parts:
        assert part.summed, part.title
        for lane in part.summed:
            assert lane.us == pytest.approx(part.us, rel=EXACT), f"{part.title}: {lane.name}"
            ends = [0.0, *(span.end_us for span in lane.spans)]
            assert [span.start_us for span in lane.spans] == pytest.approx(ends[:-1], abs=1e-9)
        for lane in part.lanes:
            assert all(span.us > 0 and span.start_us >= 0 for span in lane.spans)
            for before, after in pairwise(lane.spans):
                assert after.start_us >= before.end_us - 1e-9, f"{part.title}: {lane.name}"
    return parts


def total(part: TimelinePart, lane: str) -> float:
    return next(each.us for each in part.lanes if each.name == lane)


@pytest.mark.parametrize("case", GPU_CASES)
def test_rows_add_up_to_the_prediction(case: str) -> None:
    kernels, target = stored(case)
    parts = check_sums(kernels, target)
    assert {part.view for part in parts} == set(View) - {View.SESSION}


@pytest.mark.parametrize(
    ("kernel", "shape", "target", "config"),
    [
        ("matmul", "m=4096,n=4096,k=4096", H200, ""),
        ("matmul_reduce_scatter", "m=4096,n=4096,k=4096,world=2", PAIR, ""),
        ("all_gather_matmul", "m=4096,n=4096,k=4096,world=2", PAIR, PUSH),
    ],
)
def test_persistent_kernels_and_those_of_several_devices(
    kernel: str, shape: str, target: Target, config: str
) -> None:
    parts = check_sums(lowered(kernel, shape, target, config), target)
    rows = {lane.name for part in parts for lane in part.lanes}
    assert "producer" in rows
    assert ("network" in rows) == (target is PAIR)


def test_rows_are_the_terms_of_the_prediction() -> None:
    kernels, target = stored("matmul-M0-a100")
    launch, block, *loops = MODEL.timeline(kernels, target)
    terms = MODEL.predict(kernels, target).terms_us
    assert total(launch, "device memory") == pytest.approx(terms["dram"])
    assert total(launch, "matrix pipe, mean of the cores") == pytest.approx(terms["matrix"])
    spans = {span.name: span.us for span in launch.summed[0].spans}
    assert (spans["launch"], spans["first blocks start"]) == (terms["launch"], terms["fill"])
    waves = [us for name, us in spans.items() if "blocks" in name and "wave" in name and "held" not in name]
    assert len(waves) == 3
    assert sum(waves) == pytest.approx(terms["makespan"])
    iterations = {span.name: span.us for span in block.summed[0].spans}
    held_up = [us for name, us in iterations.items() if name.startswith("held up by what all cores share")]
    assert waves[0] == pytest.approx(block.us - sum(held_up))
    stretch = block.us / waves[0]
    assert stretch > 1.01
    assert iterations["loop 1"] * stretch == pytest.approx(125 * loops[0].us)
    assert total(block, "matrix pipe") == pytest.approx(
        125 * total(loops[0], "matrix pipe") + sum(4 * total(loop, "matrix pipe") for loop in loops[1:])
    )


def scattered(kernel: KernelProfile) -> KernelProfile:
    """The kernel with global accesses that touch eleven times as many sectors."""

    def spread(access: Access) -> Access:
        if access.space is not Space.GLOBAL:
            return access
        return replace(access, transactions=11 * access.transactions, sector_bytes=0.0)

    return kernel.with_phases(lambda phase: phase.with_accesses(spread))


def whole_kernel_rows(prediction: Prediction) -> dict[str, float]:
    """The rows of resources that a prediction with these terms has."""
    named = {"dram": "device memory", "l2": "L2", "atomics": "atomics at one address"}
    named |= {unit: f"{UNITS[unit]}, mean of the cores" for unit in RESOURCES if unit != "l2"}
    return {row: prediction.terms_us[term] for term, row in named.items() if prediction.terms_us[term] > 0}


@pytest.mark.parametrize("change", [None, scattered], ids=["as it is", "scattered"])
@pytest.mark.parametrize("case", GPU_CASES)
def test_a_resource_has_one_time_in_the_timeline_and_in_the_prediction(
    case: str, change: Callable[[KernelProfile], KernelProfile] | None
) -> None:
    kernels, target = stored(case)
    for kernel in map(change, kernels) if change else kernels:
        launch, block, *_ = MODEL.timeline([kernel], target)
        prediction = MODEL.predict([kernel], target)
        rows = {lane.name: lane.us for lane in launch.lanes if not lane.adds_up}
        no_terms = ("dispatch of blocks", "last-level cache")
        assert {name: us for name, us in rows.items() if name not in no_terms} == pytest.approx(
            whole_kernel_rows(prediction)
        )
        check_block_rows(kernel, target, block, prediction)


def test_scattered_accesses_show_in_the_row_of_l2() -> None:
    [kernel], target = stored("gemv-V5-h200")
    plain, spread = (MODEL.timeline([each], target)[0] for each in (kernel, scattered(kernel)))
    assert total(spread, "L2") > 5 * total(plain, "L2")


def check_block_rows(
    kernel: KernelProfile, target: Target, block: TimelinePart, prediction: Prediction
) -> None:
    """Units of a core are busy for a block, times all blocks, as long as the prediction states."""
    terms = MODEL._terms(kernel, target)
    times = terms.profile.blocks / terms.resident / terms.cores
    for unit in RESOURCES:
        if prediction.terms_us[unit] > 0:
            assert times * total(block, UNITS[unit]) == pytest.approx(prediction.terms_us[unit]), unit


def test_kernels_one_after_another() -> None:
    kernels, target = stored("rms_norm-R0-h200")
    first, *_ = check_sums([*kernels, *kernels], target)
    assert [span.name for span in first.summed[0].spans] == ["kernel 1", "kernel 2"]
    assert first.summed[0].spans[1].us < first.summed[0].spans[0].us  # its launch waits in the queue


def test_kernels_without_work_of_the_cores() -> None:
    empty = specialised(FED)
    library = replace(empty, roles=(), collective=LibraryCollective("all_reduce", 1 << 26))
    for kernel in (library, replace(empty, roles=(), meetings=2)):
        [part] = check_sums([kernel], PAIR)
        assert part.summed[0].spans[-1].name == "network"


def test_consumers_beside_each_other_share_their_time() -> None:
    one = specialised(FED)
    two = replace(one, roles=(*one.roles, Role("consumer", 128, (FED,))))
    parts = check_sums([two], H200)
    alone, both = (
        next(part for part in each if part.view is View.ITERATION)
        for each in (check_sums([one], H200), parts)
    )
    assert both.us < alone.us
    assert {"consumer 1", "consumer 2"} <= {lane.name for lane in parts[1].lanes}


def test_the_place_that_is_busy_longest_takes_the_makespan() -> None:
    draw = random.Random(0)
    for count, places in ((1, 4), (100, 7), (700, 132), (50_000, 132)):
        durations = [draw.uniform(1, 9) for _ in range(count)]
        chosen = last_place(durations, places)
        assert sum(us for _, us in chosen) == pytest.approx(list_makespan(durations, places))
        assert all(durations[position] == us for position, us in chosen)


class Corrected(AnalyticalModel):
    """A model whose learned part adds a fifth."""

    @property
    def fast(self) -> AnalyticalModel:
        return MODEL

    def predict(self, *given: object, **named: object) -> Prediction:
        found = MODEL.predict(*given, **named)  # type: ignore[arg-type]
        terms = {**found.terms_us, CORRECTION: 0.2 * found.latency_us}
        return replace(found, latency_us=1.2 * found.latency_us, terms_us=terms)


def test_a_learned_correction_is_stated_and_not_drawn() -> None:
    kernels, target = stored("gemv-V5-h200")
    plain, corrected = (kernel_timeline("gemv", kernels, target, model) for model in (MODEL, Corrected()))
    assert corrected.parts == plain.parts
    facts = dict(corrected.facts)
    assert facts["factor of the learned correction, not drawn"] == "1.200"
    assert dict(plain.facts)["factor of the learned correction, not drawn"] == "none"
    assert any("1.200 times the analytical time" in note.text for note in corrected.notes)
    assert not any("learned" in note.text for note in plain.notes)


def test_kernels_of_processors_have_none() -> None:
    kernel = stored("matmul-M0-h200")[0][0]
    with pytest.raises(ValueError, match="kernel of a processor"):
        MODEL.timeline([replace(kernel, kind="cpu")], load_target("cpu"))
