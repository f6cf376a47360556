"""Reports of times: out of order, below the limit, and split into terms."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.fakes import AxpyTemplate, FakeExecutor, FakeModel
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.problem.candidate import Candidate
from tilesight.problem.rasterization import Rasterization
from tilesight.problem.space import Config
from tilesight.records.session import Comparison, Decision
from tilesight.records.trial import ORDER_TERM, Measurement, Prediction
from tilesight.target.spec import Target


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    return Shell(capsys, fake_line)


class Ordering(FakeModel):
    """Puts config 30 behind config 29, though its time is shorter."""

    version = "ordering-1"

    def predict(self, kernels: Sequence[Any], target: Target) -> Prediction:
        found = super().predict(kernels, target)
        worse = '"block":30,' in kernels[0].notes[0]
        return replace(found, terms_us={**found.terms_us, ORDER_TERM: 9.0 if worse else 0.0})


def test_predicted_times_out_of_order_are_explained(shell: Shell, fake_line: FakeLine) -> None:
    asked = ("axpy", "--target", "cpu", "--shape", "X0")
    footnote = "so the times may not be in order"
    assert footnote not in shell("rank", *asked)[1]
    fake_line.model = Ordering()
    out = shell("rank", *asked, "--top", "30")[1]
    times = [float(line.split()[2]) for line in out.splitlines() if re.match(r" *\d+ +predicted ", line)]
    assert times != sorted(times)
    assert footnote in " ".join(out.split())
    # lines to copy are not wrapped
    assert max(len(line) for line in out.splitlines() if not line.startswith("in Python: ")) <= 100
    explained = shell("explain", *asked, "--config", "block=30,stages=3,swizzle=true")[1]
    assert "Its ranking score is 39.00 us: " in explained
    assert not re.search(r"^order ", explained, re.MULTILINE)
    assert "ranking score" not in shell("explain", *asked, "--config", "block=10,stages=3,swizzle=true")[1]


class SlowInTurns(FakeExecutor):
    """Finalists take longer in turns than alone."""

    def compared(self, candidates: Sequence[Candidate]) -> Comparison:
        found = tuple(
            Measurement((90.0 + place,), relative_error=0.0, observed={"in_turns": 1.0})
            for place, _ in enumerate(candidates)
        )
        return Comparison(found, (), decision=Decision(candidates[0].config))


def test_times_taken_alone_are_marked(shell: Shell, fake_line: FakeLine) -> None:
    asked, footnote = ("tune", "axpy", "--target", "cpu", "--shape"), "* timed alone and earlier."
    fake_line.executor = SlowInTurns()
    out = shell(*asked, "n=1280")[1]
    rows = re.findall(r"^ *\d+ +verified +(\S+)( \*)? ", out, re.MULTILINE)
    times = [float(time) for time, _ in rows]
    assert times != sorted(times)
    marks = [mark for _, mark in rows]
    assert marks == sorted(marks), "the finalists come first"
    assert set(marks) == {"", " *"}
    assert footnote in out


def test_the_limit_of_a_processor_is_not_known_before_it_was_calibrated(shell: Shell) -> None:
    out = shell("tune", "axpy", "--target", "cpu", "--shape", "n=1048576")[1]
    assert "hardware limit: not known, since target cpu has the figures of a typical core" in out
    assert "Some times are below that limit" not in out
    assert "%" not in "".join(re.findall(r"^ *\d+ +verified .*$", out, re.MULTILINE))


def test_explain_groups_terms_and_says_its_title_once(shell: Shell) -> None:
    asked = ("explain", "axpy", "--target", "cpu", "--shape", "X0")
    _, out, err = shell(*asked)  # nothing is known: the space is ranked first
    assert "explore: " in err
    assert (out + err).count("axpy X0: n=1024") == 1
    added, beside = (out.index(text) for text in ("What adds up to the predicted time", "they do not add up"))
    assert re.search(
        r"^launch +1\.000\ncores and memory +29\.00\npredicted time +30\.00$", out[added:beside], re.MULTILINE
    )
    assert re.search(r"^vector +29\.00$", out[beside:], re.MULTILINE)


class Reordering(AxpyTemplate):
    """`swizzle` changes only the order of blocks."""

    def reordered(self, config: Config) -> tuple[Config, Rasterization] | None:
        return (Config({**config, "swizzle": False}), Rasterization("row", 4)) if config["swizzle"] else None


@pytest.mark.parametrize("command", ["rank", "tune"])
def test_block_orders_of_one_config_share_a_row(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    template = Reordering()
    monkeypatch.setattr(
        "tilesight.kernels._registry", lambda: ({"axpy": template.operator}, {"axpy": template})
    )
    asked = (command, "axpy", "--target", "cpu", "--shape", "X0", "--top", "4")
    shell(*asked)
    grouped, listed = shell(*asked)[1], shell(*asked, "--variants")[1]
    found = re.findall(
        r"^ *\d+ +(?:predicted|verified) .*?(\d+)  (block=\d+,stages=\d),", grouped, re.MULTILINE
    )
    assert len({config for _, config in found}) == 4
    assert ("2", "block=30,stages=3") in found
    assert "that many candidates that differ only in the order of blocks" in grouped
    alone = re.findall(r"^ *\d+ +(?:predicted|verified) .*(block=\d+,stages=\d),", listed, re.MULTILINE)
    assert len(set(alone)) < len(alone) == 4
    assert "orders" not in listed
    session = json.loads(shell(*asked, "--json")[1])["sessions"][0]
    configs = [(c["config"]["block"], c["config"]["stages"]) for c in session["candidates"]]
    assert len(set(configs)) < len(configs)
