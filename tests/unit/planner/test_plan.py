"""Whole plans with times from a formula: coverage, comparisons, records, errors."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.planner.conftest import RowsLine
from tests.unit.planner.rows_line import RowsExecutor, RowsModel, RowsTemplate, true_us
from tilesight.api.planning import plan
from tilesight.database import open_store
from tilesight.errors import Failure, FailureKind, InputError, NoCandidateError, UnknownNameError
from tilesight.machine.placement import locate
from tilesight.planner.result import PlanResult
from tilesight.planner.summary import MOST_LOSS
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import ORDER_TERM, Prediction
from tilesight.target.spec import load_target
from tilesight.tuner.resolve import find_context

RANGE = "m=1..4096"
pytestmark = pytest.mark.usefixtures("rows_line")


def planned(**changes: object) -> PlanResult:
    options: dict[str, object] = {"target": "cpu", "shape": "n=1024", "kernels": 6, "shapes": 12}
    return plan("rows", RANGE, **{**options, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Kept:
    """A plan with its executor and its database."""

    result: PlanResult
    executor: RowsExecutor
    database: bytes


_kept: list[Kept] = []


@pytest.fixture
def whole(rows_line: RowsLine, tmp_path: Path) -> PlanResult:
    """The plan with the usual options, made once; its executor and its database are those at hand."""
    file = tmp_path / "performance.db"
    if not _kept:
        result = planned()
        _kept.append(Kept(result, rows_line.executor, file.read_bytes()))
    [kept] = _kept
    rows_line.executor = kept.executor
    file.write_bytes(kept.database)
    return kept.result


def best_us(m: int) -> float:
    template = RowsTemplate()
    workload = template.operator.workload(f"m={m},n=1024")
    return min(
        true_us(config, workload.dims) for config in template.space(workload, load_target("cpu")).configs()
    )


def losses(found: PlanResult, sizes: list[int]) -> list[float]:
    """To the best config of each size, by the formula."""
    return [true_us(found.table.choose(m).config, {"m": m, "n": 1024}) / best_us(m) - 1 for m in sizes]


HELD_OUT = [
    2,
    6,
    15,
    23,
    50,
    70,
    99,
    140,
    201,
    275,
    333,
    402,
    520,
    700,
    901,
    1100,
    1500,
    2100,
    2900,
    3500,
    4000,
]


def test_few_kernels_cover_a_range_at_little_loss(rows_line: RowsLine, whole: PlanResult) -> None:
    found = whole
    assert len(found.table.kernels) <= 6
    assert found.table.dynamic == ("m",)
    assert (found.table.first, found.table.last) == (1, 4096)
    lost = losses(found, HELD_OUT)
    assert sum(lost) / len(lost) < 0.04
    assert max(lost) < 0.2
    rows_line.executor = RowsExecutor()  # other tests read the one of the whole plan
    one = losses(planned(kernels=1), HELD_OUT)
    assert sum(one) > 4 * sum(lost)  # several kernels are needed


def masked(candidate: Candidate) -> float:
    """Slower by up to a half, the less of its last tile a kernel of few tiles fills: nothing that the model
    could say."""
    size, block = candidate.workload.dims["m"], candidate.config.int("block")
    tiles = -(-size // block)
    return 1 + 0.5 * (tiles - size / block) / tiles


def test_sizes_are_added_at_ends_of_segments(rows_line: RowsLine) -> None:
    rows_line.executor = RowsExecutor(factor=masked)
    found = planned(shapes=24)
    first, added = (
        {size for _, size in rows_line.executor.measured[:60]},
        {piece.size for piece in found.table.evidence},
    )
    assert len(first) <= 12
    assert 12 < len(added) <= 24
    ends = {size for piece in found.table.segments for size in (piece.first, piece.last)}
    assert len(ends & added) >= 6

    def true(config: Config, m: int) -> float:
        workload = RowsTemplate().operator.workload(f"m={m},n=1024")
        return true_us(config, workload.dims) * masked(
            Candidate(workload, load_target("cpu"), RowsTemplate(), config)
        )

    lost = []
    for m in HELD_OUT:
        space = RowsTemplate().space(RowsTemplate().operator.workload(f"m={m},n=1024"), load_target("cpu"))
        lost.append(
            true(found.table.choose(m).config, m) / min(true(config, m) for config in space.configs()) - 1
        )
    assert sum(lost) / len(lost) < 0.05
    assert max(lost) < 0.2


@pytest.mark.usefixtures("whole")
def test_each_kernel_is_built_once_for_all_sizes(rows_line: RowsLine) -> None:
    executor = rows_line.executor
    configs = [candidate.config for candidate in executor.built_for]
    assert len(configs) == len(set(configs))
    assert all(candidate.dynamic == ("m",) for candidate in executor.built_for)
    sizes = {size for _, size in executor.measured}
    assert len(sizes) == 12
    assert {1, 4096} <= sizes
    assert len(executor.measured) < 12 * 9


def test_the_default_is_measured_at_all_sizes_and_compared_with_close_choices(
    rows_line: RowsLine, whole: PlanResult
) -> None:
    found = whole
    default = Config({"block": 32, "width": 64, "stages": 1})
    assert sum(config == default for config, _ in rows_line.executor.measured) >= 9  # where its space has it
    for piece in found.table.evidence:
        assert piece.chosen_us <= found.default_us[piece.size] * 1.005
    doubtful = [
        piece
        for piece in found.table.evidence
        if found.table.kernels[piece.kernel]
        != RowsTemplate().default_config(
            RowsTemplate().operator.workload(f"m={piece.size},n=1024"), load_target("cpu")
        )
        and found.default_us[piece.size] < 1.05 * piece.chosen_us
    ]
    assert {piece.size for piece in doubtful} <= set(rows_line.executor.compared_at)


def test_a_kernel_that_is_slower_in_turns_does_not_replace_the_default(rows_line: RowsLine) -> None:
    """Measured apart everything but the default looks a little faster than it is."""
    default = Config({"block": 32, "width": 64, "stages": 1})
    compared = rows_line.executor.compared_at

    def factor(candidate: Candidate) -> float:
        if candidate.config == default:
            return 0.8
        return 0.82 if len(compared) == 0 and candidate.workload.dims["m"] >= 1024 else 1.0

    rows_line.executor = RowsExecutor(factor=factor)
    compared = rows_line.executor.compared_at
    found = planned(kernels=2)
    assert compared
    for piece in found.table.evidence:
        config = found.table.kernels[piece.kernel]
        ours = true_us(config, {"m": piece.size, "n": 1024}) * (0.8 if config == default else 1.0)
        theirs = 0.8 * true_us(default, {"m": piece.size, "n": 1024})
        if piece.size in compared:
            assert ours <= theirs * 1.005


def test_evidence_marks_measured_times(whole: PlanResult) -> None:
    found = whole
    assert found.is_measured
    assert all(piece.chosen_measured and piece.best_measured for piece in found.table.evidence)
    assert len(found.table.evidence) == 12
    assert found.worst is not None
    assert found.mean_loss <= found.worst.loss
    assert found.table.device
    assert found.table.protocol


def test_without_a_device_all_times_are_predicted_and_marked_so(rows_line: RowsLine) -> None:
    found = planned(target="h200")
    assert not found.is_measured
    assert not rows_line.executor.built_for
    assert not any(piece.best_measured for piece in found.table.evidence)
    assert found.table.device == ""
    assert "predicted" in found.messages[0]
    lost = losses(found, HELD_OUT)
    assert sum(lost) / len(lost) < 0.2  # the model is wrong by up to an eighth


def test_predicted_times_are_times_and_no_ranking_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ordering(RowsModel):
        """Ranks all candidates as if they took half of their time."""

        def predict(self, *arguments: Any, **more: Any) -> Prediction:
            found = super().predict(*arguments, **more)
            return replace(found, terms_us={ORDER_TERM: -found.latency_us / 2})

    scored = planned(target="h200").table.evidence
    monkeypatch.setattr("tilesight.costmodel.default_model", Ordering)
    found = planned(target="h200", database="sqlite://").table
    assert [(e.size, e.chosen_us, e.best_us) for e in found.evidence] == [
        (e.size, e.chosen_us, e.best_us) for e in scored
    ]


def test_a_second_plan_measures_nothing_again(rows_line: RowsLine, whole: PlanResult) -> None:
    first = whole
    rows_line.executor = RowsExecutor()
    second = planned()
    assert second.recalled == first.measured
    assert second.measured <= first.measured / 10
    assert second.built <= first.built / 4
    assert second.table.kernels == first.table.kernels


@pytest.mark.full
def test_a_second_plan_samples_the_sizes_of_the_first_despite_noise(
    rows_line: RowsLine,
) -> None:
    def noisy(seed: int) -> RowsExecutor:
        generator = random.Random(seed)
        return RowsExecutor(factor=lambda candidate: masked(candidate) * (1 + 0.02 * generator.random()))

    rows_line.executor = noisy(1)
    first = planned(shapes=24)
    rows_line.executor = noisy(2)
    second = planned(shapes=24)
    assert {piece.size for piece in second.table.evidence} == {piece.size for piece in first.table.evidence}
    assert second.recalled == first.measured
    assert second.measured <= first.measured / 10


@pytest.mark.full
def test_sizes_of_a_plan_of_another_range_are_not_sampled() -> None:
    plan("rows", "m=3900..4096", "cpu", "n=1024", kernels=2, shapes=24)
    sizes = [piece.size for piece in planned(shapes=24).table.evidence]
    assert sum(size >= 3900 for size in sizes) < 4


def test_an_interrupted_plan_is_continued_with_its_sizes(
    rows_line: RowsLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100_000))
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", lambda: float(next(now)))
        cut = planned(budget_s=800.0, shapes=24)
    assert cut.is_cut
    rows_line.executor = RowsExecutor()
    whole_tiles = planned(shapes=24)
    assert {piece.size for piece in cut.table.evidence} <= {
        piece.size for piece in whole_tiles.table.evidence
    }
    assert len(whole_tiles.table.evidence) == 24
    assert not whole_tiles.is_cut


@pytest.mark.parametrize(
    ("shapes", "kernels"),
    [(1, 1), (3, 2), pytest.param(24, 6, marks=pytest.mark.full)],
)
def test_the_requested_number_of_sizes_is_sampled(shapes: int, kernels: int) -> None:
    sizes = [piece.size for piece in planned(shapes=shapes, kernels=kernels).table.evidence]
    assert len(sizes) == shapes
    assert 4096 in sizes
    assert shapes == 1 or 1 in sizes


def test_a_plan_without_time_for_all_sizes_has_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    found = planned(budget_s=600.0, shapes=24)
    assert len(found.table.evidence) < 24
    assert found.is_cut
    assert "the time budget ended it early" in found.messages[-1]


def test_a_dispatcher_finds_the_measurements(whole: PlanResult) -> None:
    found = whole
    placement = locate("cpu", measures=True)
    template = RowsTemplate()
    with open_store(os.environ["TILESIGHT_DB"]) as store:
        for piece in found.table.evidence:
            workload = template.operator.workload(f"m={piece.size},n=1024")
            space = template.space(workload, placement.target)
            context = find_context(
                template,
                workload,
                placement,
                "rows-1",
                space,
                MeasurementProtocol.named("default", placement.target),
                ("m",),
            )
            (known,) = store.winners(context, context.workload.dims)
            assert known.dynamic == ("m",)
            assert known.latency_us == pytest.approx(piece.best_us, rel=0.01)


def test_a_config_that_is_wrong_at_one_size_is_in_no_table(rows_line: RowsLine, whole: PlanResult) -> None:
    good = whole.table.kernels[0]

    def wrong(stage: str, config: Config) -> Failure | None:
        return (
            Failure(FailureKind.WRONG_RESULT, "it is wrong")
            if stage == "measure" and config == good
            else None
        )

    rows_line.executor = RowsExecutor(wrong)
    found = planned(seed=1, database="sqlite://")
    assert good not in found.table.kernels
    assert found.table.kernels


def test_if_nothing_builds_the_error_gives_the_reason(rows_line: RowsLine) -> None:
    rows_line.executor = RowsExecutor(
        lambda stage, _: Failure(FailureKind.BUILD_ERROR, "no compiler") if stage == "build" else None
    )
    with pytest.raises(NoCandidateError, match="build_error: no compiler"):
        planned()


def test_if_nothing_lowers_the_error_tells_it(rows_line: RowsLine) -> None:
    rows_line.executor = RowsExecutor(
        lambda stage, _: Failure(FailureKind.LOWER_ERROR, "refused") if stage == "lower" else None
    )
    with pytest.raises(NoCandidateError, match="none lowers"):
        planned()


def test_static_plans_build_for_each_size(rows_line: RowsLine) -> None:
    found = planned(static=True, shapes=6)
    assert found.table.dynamic == ()
    assert all(candidate.dynamic == () for candidate in rows_line.executor.built_for)
    pairs = [(candidate.config, candidate.workload.dims["m"]) for candidate in rows_line.executor.built_for]
    assert len(pairs) == len(set(pairs))
    assert set(rows_line.executor.measured) <= set(pairs)
    assert all(piece.chosen_measured for piece in found.table.evidence)


@pytest.mark.full
def test_without_cached_profiles_promising_configs_are_lowered_at_each_size(rows_line: RowsLine) -> None:
    rows_line.executor = RowsExecutor(keeps=False)
    found = planned()
    lost = losses(found, HELD_OUT)
    assert sum(lost) / len(lost) < 0.08


@pytest.mark.full
def test_weights_reduce_the_loss_at_heavy_sizes() -> None:
    asked = {200: 1.0, 300: 1.0}
    evenly_spaced = losses(planned(kernels=1), [200, 300])
    drawn = losses(planned(kernels=1, weights=asked), [200, 300])
    assert sum(drawn) < sum(evenly_spaced)


def test_a_budget_ends_a_plan_early_with_a_message(
    rows_line: RowsLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoCandidateError, match="the time budget ended before anything was predicted"):
        planned(budget_s=1e-9)
    now = iter(range(10_000))
    monkeypatch.setattr(
        "time.monotonic", lambda: float(next(now))
    )  # each look at the clock is a second later
    found = planned(budget_s=320.0, database="sqlite://")
    assert found.is_cut
    assert 0 < found.measured < 45
    assert "the time budget ended it early" in found.messages[-1]
    tried = {config for config, _ in rows_line.executor.measured}
    assert set(found.table.kernels) <= tried
    assert (found.table.first, found.table.last) == (1, 4096)


def test_few_sizes_are_all_sampled() -> None:
    found = plan("rows", "m=5..8", "cpu", "n=1024", kernels=2, shapes=24)
    assert [piece.size for piece in found.table.evidence] == [5, 6, 7, 8]
    single = plan("rows", "m=64..64", "cpu", "n=1024", kernels=2, shapes=24)
    assert (single.table.first, single.table.last) == (64, 64)
    assert len(single.table.kernels) == 1


def test_a_published_shape_gives_the_other_dimensions() -> None:
    found = plan("rows", "m=1..64", "cpu", "R0", kernels=1, shapes=3)
    assert dict(found.table.fixed) == {"n": 1024}
    assert plan("rows", "m=1..64", "cpu", kernels=1, shapes=3).table.kernels == found.table.kernels


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vary": "m"}, InputError, "must name a dimension and its range"),
        ({"vary": "m=9..3"}, InputError, "must rise"),
        ({"vary": "m=0..3"}, InputError, "must rise, within 1"),
        ({"vary": "q=1..3"}, UnknownNameError, "unknown rows dimension 'q'"),
        ({"vary": "n=1..3", "shape": "m=4"}, InputError, "a row lies in registers.*--static"),
        ({"shape": "m=4,n=4"}, InputError, "m=4 is varied"),
        ({"shape": "k=4"}, InputError, "unknown rows dimension 'k'"),
        ({"shape": {"m": 3, "n": 4}}, InputError, "leave it out of the shape"),
        ({"shape": {}}, InputError, "the shape lacks n; beside m, which varies, give n"),
        ({"kernels": 0}, InputError, "kernels=0 must lie in 1 .. 256"),
        ({"shapes": 0}, InputError, "shapes=0"),
        ({"effort": "exhaustive"}, InputError, "a plan has no effort .exhaustive.: take one of predict"),
        ({"effort": "half"}, UnknownNameError, "effort"),
        ({"budget_s": -1.0}, InputError, "budget"),
        ({"weights": "hits"}, InputError, "`misses`"),
    ],
)
def test_errors_for_wrong_arguments_offer_a_way_out(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    options: dict[str, object] = {"vary": RANGE, "target": "cpu", "shape": "n=1024", **changes}
    with pytest.raises(error, match=message):
        plan("rows", **options)  # type: ignore[arg-type]


@pytest.mark.full
def test_sizes_at_which_the_default_is_faster_are_named(rows_line: RowsLine) -> None:
    """One kernel, and defaults that are far better where they are the default."""

    def factor(candidate: Candidate) -> float:
        size = candidate.workload.dims["m"]
        return (
            0.3
            if candidate.config == RowsTemplate().default_config(candidate.workload, candidate.target)
            and size in (1, 4096)
            else 1.0
        )

    rows_line.executor = RowsExecutor(factor=factor)
    found = planned(kernels=1)
    (text,) = [message for message in found.messages if "default config" in message]
    slower = [
        piece.size for piece in found.table.evidence if piece.chosen_us > 1.005 * found.default_us[piece.size]
    ]
    assert slower
    assert all(f"m={size} (by" in text for size in slower)


def test_more_kernels_are_proposed_where_the_expected_loss_is_large() -> None:
    few, more = (planned(effort="predict", kernels=count) for count in (2, 12))
    assert few.expected_worst > MOST_LOSS >= more.expected_worst
    (text,) = [message for message in few.messages if "--kernels" in message]
    assert text.startswith("2 kernels are expected to lose up to ")
    assert "with --kernels 3 the same command" in text
    assert not [message for message in more.messages if "--kernels" in message]


def test_a_plan_whose_exploration_was_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100_000))
    with monkeypatch.context() as patched:
        patched.setattr("time.monotonic", lambda: float(next(now)))
        cut = planned(effort="predict", budget_s=300.0)
    assert cut.is_cut
    assert cut.seconds < 240.0  # the rest of the time was enough
    assert "the time budget ended it early" in cut.messages[-1]
