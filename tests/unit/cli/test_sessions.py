"""`tilesight sessions` and the functions behind it."""

from __future__ import annotations

import json
import re

import pytest

import tilesight
from tests.support.fakes import FakeModel
from tests.unit.cli.documented import check_fields
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.errors import InputError
from tilesight.records.session import Effort, SessionState

ASKED = ("axpy", "--target", "cpu", "--shape")


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    return Shell(capsys, fake_line)


class Other(FakeModel):
    version = "other-2"


def test_sessions_are_listed_the_latest_first(shell: Shell) -> None:
    assert shell("sessions")[1].startswith("no session is recorded")
    shell("tune", *ASKED, "X0")
    shell("rank", *ASKED, "X1")
    out = shell("sessions")[1]
    assert out == shell("sessions", "list")[1]
    rows = [line for line in out.splitlines() if "complete" in line]
    assert len(rows) == 2
    assert re.search(r" predict +cpu +~", rows[0])
    assert re.search(r" quick +cpu +10\.00 +\d+ +axpy X0:", rows[1])
    assert "~ marks predicted times" in out
    assert shell("sessions", "list", "--limit", "1")[1].count("complete") == 1
    assert shell("sessions", "list", "matmul")[1].startswith("no session of kernel 'matmul' is recorded")


def test_one_session_is_shown_with_phases_finalists_and_winner(shell: Shell) -> None:
    shell("tune", *ASKED, "X0")
    [listed] = tilesight.sessions("axpy", "cpu")
    out = shell("sessions", "show", str(listed.id))[1]
    assert out.startswith(f"session {listed.id}: began 20")
    counts = listed.counts
    assert f"{counts['verified']} measured" in out
    assert re.search(r"^phases: \d+ predicted, 16 built, 16 measured", out, re.MULTILINE)
    assert "best config: block=30,stages=3,swizzle=true" in out
    assert 'in Python: axpy = tilesight.dispatcher("axpy", target="cpu"' in out
    found = tilesight.session(listed.id)
    assert str(found) == out.rstrip("\n")
    assert found.result.best is not None
    assert found.result.best.config == listed.winner
    assert (listed.winner_us, listed.is_measured) == (10.0, True)
    assert (listed.effort, listed.state) == (Effort.QUICK, SessionState.COMPLETE)


def test_two_sessions_are_compared_in_context_and_winner(shell: Shell, fake_line: FakeLine) -> None:
    shell("tune", *ASKED, "X0")
    fake_line.model = Other()
    shell("tune", *ASKED, "X0", "--effort", "full")
    second, first = (summary.id for summary in tilesight.sessions())
    found = tilesight.compare_sessions(first, second)
    names = {(d.kind, d.name): (d.first, d.second) for d in found.differences}
    assert names["context", "model"] == (FakeModel.version, "other-2")
    assert names["run", "effort"] == ("quick", "full")
    assert ("context", "workload") not in names
    assert found.times[0][1:] == (10.0, 10.0)
    out = shell("sessions", "compare", str(first), str(second))[1]
    assert "Their contexts differ." in out
    assert "other-2" in out
    assert "They have one context" in shell("sessions", "compare", str(first), str(first))[1]


def test_a_session_that_is_not_there_is_refused(shell: Shell) -> None:
    shell("tune", *ASKED, "X0")
    code, _, err = shell("sessions", "show", "12")
    assert (code, err) == (
        2,
        "error: session 12 is not in this database; `tilesight sessions` lists the sessions\n",
    )
    with pytest.raises(InputError, match="session -1 is not in this database"):
        tilesight.session(-1)


def test_json_fields_are_documented(shell: Shell) -> None:
    shell("tune", *ASKED, "X0")
    shell("tune", *ASKED, "X1")
    first, second = (str(summary.id) for summary in tilesight.sessions())
    answers = [
        json.loads(shell("sessions", *call, "--json")[1])
        for call in (("list",), ("show", first), ("compare", first, second))
    ]
    assert [answer["kind"] for answer in answers] == ["sessions", "session", "sessions_compare"]
    assert answers[1]["result"]["workload"] == answers[1]["session"]["workload"]
    del answers[1]["result"]
    answers[0]["result"] = None
    check_fields("sessions list", answers)


def test_arguments_without_a_subcommand_are_those_of_list(shell: Shell) -> None:
    shell("tune", *ASKED, "X0")
    shell("rank", *ASKED, "X1")
    listed = shell("sessions", "list", "axpy", "--limit", "1")[1]
    assert "axpy X1" in listed
    assert "axpy X0" not in listed
    assert shell("sessions", "axpy", "--limit", "1")[1] == listed
    assert "no session of kernel '17' is recorded" in shell("sessions", "17")[1]
