"""A kernel is replaced only if paired measurements show another one to be faster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.dispatch.harness import Harness, config, make_harness
from tilesight.dispatch.improve.paired_comparison import conclude
from tilesight.dispatch.select.choice import Choice, ChoiceSource
from tilesight.errors import Failure, FailureKind, InputError
from tilesight.records.session import Comparison, Decision
from tilesight.records.trial import NOT_MEASURED, Measurement


def two(tmp_path: Path) -> Harness:
    """The kernel for m=100 is the winner of m=64; the winner of m=256 is its challenger."""
    return make_harness(tmp_path, winners=lambda s: [s.winner(64, 16), s.winner(256, 32)])


@pytest.mark.parametrize(
    ("present_us", "other_us", "stays"),
    [(10.0, 8.0, False), (10.0, 9.99, True), (10.0, 10.0, True), (10.0, 12.0, True)],
)
def test_the_active_kernel_is_replaced_only_if_it_is_certainly_slower(
    tmp_path: Path, present_us: float, other_us: float, stays: bool
) -> None:
    made = two(tmp_path)
    made.executor.times_us = {16: present_us, 32: other_us}
    x = torch.randn(100, 4)
    made.d(x)
    found = made.d.improve(m=100)
    assert (found.after.config == found.before.config) is stays
    assert [c.config for c in made.executor.compared[0]][:2] == [config(16), config(32)]
    now = made.d.choose(m=100)
    assert now.config == (config(16) if stays else config(32))
    assert (now.source, now.is_measured) == (ChoiceSource.RECORD, True)
    assert now.expected_us == (present_us if stays else other_us)
    assert torch.equal(made.d(x), 3 * x)
    if not stays:
        assert "it replaced block_m=16" in now.reason
    made.d.close()


def test_the_winner_of_a_comparison_is_a_neighbour_of_the_next_shape(tmp_path: Path) -> None:
    made = two(tmp_path)
    made.executor.times_us = {16: 10.0, 32: 8.0}
    made.d.improve(m=100)
    assert made.d.choose(m=101).config == config(32)
    made.d.close()


def test_without_a_challenger_the_active_kernel_stays(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    found = made.d.improve(m=9)
    assert found.after is found.before
    assert "no other config" in found.reason
    assert made.executor.compared == []
    with pytest.raises(InputError, match="challengers=0 must lie in 1"):
        made.d.improve(m=9, challengers=0)
    made.d.close()


def test_shapes_without_a_record_are_improved_once_in_the_background(tmp_path: Path) -> None:
    made = make_harness(tmp_path, background=True, winners=lambda s: [s.winner(64, 16), s.winner(256, 32)])
    made.executor.times_us = {16: 10.0, 32: 8.0}
    x = torch.randn(100, 4)
    assert torch.equal(made.d(x), 3 * x)
    made.shapes.improver.thread.submit(bool).result(10)
    assert made.d.choose(m=100).config == config(32)
    assert torch.equal(made.d(x), 3 * x)
    made.d(torch.randn(64, 4))  # recorded: nothing to try
    made.shapes.improver.thread.submit(bool).result(10)
    assert len(made.executor.compared) == 1
    made.d.close()


def test_failures_in_the_background_fail_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_harness(tmp_path, background=True, winners=lambda s: [s.winner(64, 16), s.winner(256, 32)])

    def fails(*_: object) -> Comparison:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(made.executor, "_compare", fails)
    x = torch.randn(100, 4)
    for _ in range(3):
        assert torch.equal(made.d(x), 3 * x)
    made.shapes.improver.thread.submit(bool).result(10)
    assert made.d.choose(m=100).config == config(16)
    with pytest.raises(RuntimeError, match="the device is gone"):
        made.d.improve(m=100)  # the caller gets the exception
    made.d.close()


def choice(made: Harness, block: int) -> Choice:
    return Choice(made.problem.workload((100,)), config(block), ChoiceSource.NEIGHBOUR, "near")


def test_a_wrong_kernel_is_replaced_and_one_that_was_not_timed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_harness(tmp_path)
    present, other = choice(made, 16), choice(made, 32)
    right = Measurement((8.0,) * 3, relative_error=0.0)
    decision = Decision(config(32), ())
    wrong = Measurement(failure=Failure(FailureKind.WRONG_RESULT, "differs"))
    found = conclude(present, [present, other], Comparison((wrong, right), (), (), decision))
    assert found.after.config == config(32)
    assert "wrong results" in found.reason
    for failure in (
        Failure(FailureKind.RUN_ERROR, "no memory"),
        Failure(FailureKind.RUN_ERROR, f"{NOT_MEASURED}another one failed"),
    ):
        stays = conclude(
            present, [present, other], Comparison((Measurement(failure=failure), right), (), (), decision)
        )
        assert stays.after is present
    monkeypatch.setenv("TILESIGHT_MAX_NOISE", "0.1")
    noisy = Measurement((8.0, 12.0, 16.0), relative_error=0.0)
    for times in ((right, noisy), (noisy, right)):
        stays = conclude(present, [present, other], Comparison(times, (), (), decision))
        assert stays.after is present
        assert "too noisy to tell (± 33%)" in stays.reason
    none = conclude(
        present,
        [present],
        Comparison((Measurement(failure=Failure(FailureKind.RUN_ERROR, "x")),), (), (), None),
    )
    assert none.after is present
