"""The config that is chosen for a shape, and its reason."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.unit.dispatch.harness import config, make_harness
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.dispatch.table.table_file import DispatchTable, Segment
from tilesight.errors import ConfigError, InputError, NoCandidateError, UnknownNameError, WorkloadError
from tilesight.problem.space import SearchSpace


def table(dynamic_dims: tuple[str, ...] = (), blocks: tuple[int, ...] = (16, 32)) -> DispatchTable:
    segments = (Segment(1, 100, 0), Segment(101, 1000, 1))
    kernels = tuple(config(block) for block in blocks)
    conditions = ("scaling", "0", "cpu", "f", "native", "a processor", "p", {}, "fake")
    return DispatchTable(
        "scaling",
        "float32",
        {"factor": 3},
        ("m", "n"),
        {"n": 4},
        "m",
        dynamic_dims,
        *conditions,
        kernels,
        segments,
    )


def test_the_order_of_sources(tmp_path: Path) -> None:
    made = make_harness(tmp_path, table=table(), winners=lambda s: [s.winner(64, 16, 5.0)])
    recorded = made.d.choose(m=64)
    assert (recorded.source, recorded.config, recorded.expected_us, recorded.is_measured) == (
        ChoiceSource.RECORD,
        config(16),
        5.0,
        True,
    )
    tabled = made.d.choose(m=300)
    assert (tabled.source, tabled.config) == (ChoiceSource.TABLE, config(32))
    assert "m=101..1000" in tabled.reason
    beside = made.d.choose(m=2000)  # beyond the table
    assert (beside.source, beside.config) == (ChoiceSource.NEIGHBOUR, config(16))
    assert "m=64" in beside.reason
    alone = make_harness(tmp_path)
    assert alone.d.choose(m=64).source is ChoiceSource.DEFAULT


def test_predictions_of_neighbours_are_corrected_by_their_records(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(64, 16, 20.0), s.winner(256, 32, 10.0)])
    teach, shape = made.shapes.selector.predictor.set_time, made.problem.workload
    teach(config(16), shape((64,)), 10.0)  # it takes twice what is predicted
    teach(config(32), shape((256,)), 20.0)  # half
    teach(config(16), shape((100,)), 12.0)
    teach(config(32), shape((100,)), 30.0)
    chosen = made.d.choose(m=100)
    assert (chosen.config, chosen.source) == (config(32), ChoiceSource.NEIGHBOUR)
    assert chosen.expected_us == pytest.approx(15.0)
    assert not chosen.is_measured
    assert "m=256" in chosen.reason
    assert "2 neighbours" in chosen.reason


def test_without_profiles_the_nearest_neighbour_is_taken_and_the_reason_says_so(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(16, 16), s.winner(1024, 64)])
    assert made.d.choose(m=24).config == config(16)
    assert made.d.choose(m=700).config == config(64)
    assert "no cached profile" in made.d.choose(m=700).reason


def test_a_neighbour_that_does_not_fit_the_target_is_left_out(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(64, 16), s.winner(256, 32)])
    made.shapes.selector.predictor.set_time(config(16), made.problem.workload((100,)), math.inf)
    assert made.d.choose(m=100).config == config(32)


def test_an_illegal_config_is_never_taken(tmp_path: Path) -> None:
    # 64 rows exceed m=20 (nearest legal: 16), and the 32 rows of the table exceed it too
    made = make_harness(tmp_path, table=table(blocks=(32, 64)), winners=lambda s: [s.winner(64, 64)])
    chosen = made.d.choose(m=20)
    assert (chosen.source, chosen.config) == (ChoiceSource.NEIGHBOUR, config(16))
    assert "with block_m=16" in chosen.reason
    # a record that is illegal in the present space is ignored
    broken = make_harness(tmp_path, winners=lambda s: [s.winner(20, 64)])
    assert broken.d.choose(m=20).config != config(64)
    foreign = make_harness(tmp_path, winners=lambda s: [s.winner(20, 8)])
    foreign.shapes.loaded.winners.exact(foreign.problem.workload((20,)))[0].config._values = {"other": 1}  # type: ignore[assignment]
    assert foreign.d.choose(m=20).source is ChoiceSource.DEFAULT


def test_a_kernel_with_a_dynamic_dimension_is_legal_below_its_tile(tmp_path: Path) -> None:
    made = make_harness(tmp_path, dynamic=("m",), winners=lambda s: [s.winner(64, 64, 5.0, ("m",))])
    chosen = made.d.choose(m=20)
    assert (chosen.config, chosen.dynamic, chosen.source) == (config(64), ("m",), ChoiceSource.NEIGHBOUR)


def test_of_two_records_of_one_shape_the_faster_is_chosen(tmp_path: Path) -> None:
    made = make_harness(
        tmp_path,
        winners=lambda s: [s.winner(64, 16, 7.0, ("m",)), s.winner(64, 32, 6.0), s.winner(64, 8, 6.5)],
    )
    assert made.d.choose(m=64).config == config(32)


def test_wrong_arguments_are_named_in_the_error(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    with pytest.raises(InputError, match="m is free here and must be given"):
        made.d.choose()
    with pytest.raises(InputError, match="n=4 is fixed"):
        made.d.choose(m=1, n=4)
    with pytest.raises(UnknownNameError, match="unknown scaling dimension 'q'"):
        made.d.choose(q=1)
    for bad in (0, -1, True, 1.5, 2**40):
        with pytest.raises(WorkloadError, match="m="):
            made.d.choose(m=bad)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="exceeds 5000"):
        made.d.choose(m=5001)


def test_nothing_legal_is_an_error_that_says_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_harness(tmp_path)
    monkeypatch.setattr(type(made.problem.template), "default_config", lambda *_: None)
    first = made.d.choose(m=8)
    assert first.source is ChoiceSource.DEFAULT
    assert first.config == made.problem.space(first.workload).configs()[0]
    assert first.reason.startswith(
        "in place of a default config the first legal one of scaling: nothing of scaling is recorded"
    )
    monkeypatch.setattr(SearchSpace, "configs", lambda _: ())
    with pytest.raises(NoCandidateError, match="tilesight space scaling"):
        made.d.choose(m=9)


def test_reload_reads_new_records(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    assert made.d.choose(m=64).source is ChoiceSource.DEFAULT
    made.store.known = [made.winner(64, 32, 4.0)]
    assert made.d.choose(m=64).source is ChoiceSource.DEFAULT
    made.d.reload()
    assert made.d.choose(m=64).config == config(32)


def test_explore_falls_back_to_other_sources_if_lowering_fails(tmp_path: Path) -> None:
    made = make_harness(tmp_path, explore=True, winners=lambda s: [s.winner(64, 16), s.winner(256, 32)])
    assert made.d.choose(m=100).source in (ChoiceSource.NEIGHBOUR, ChoiceSource.DEFAULT)
    made.d.close()


def test_the_number_of_remembered_choices_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.dispatch.select.loaded_sources.SHAPE_LIMIT", 10)
    made = make_harness(tmp_path)
    for m in range(1, 100):
        made.d.choose(m=m)
    assert len(made.shapes.loaded.choices) <= 10
    assert made.d.choose(m=1).workload.dims["m"] == 1


def test_a_given_config_is_the_only_source(tmp_path: Path) -> None:
    made = make_harness(tmp_path, table=table(), winners=lambda s: [s.winner(64, 16, 5.0)])
    selector = made.shapes.selector
    selector.given = config(32)
    assert [(c.source, c.config) for c in selector.choices(made.problem.workload((64,)))] == [
        (ChoiceSource.GIVEN, config(32))
    ]
    assert made.d.choose(m=300).source is ChoiceSource.GIVEN
    selector.given = config(7)
    with pytest.raises(ConfigError, match=r"block_m=7 is not one of .*Nearest legal: block_m=8"):
        made.d.choose(m=65)
