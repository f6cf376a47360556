"""Numbers and tables."""

from __future__ import annotations

import json
import math

import pytest

from tests.unit.conftest import Terminal
from tilesight.cli import output
from tilesight.reports import text_table as table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.000"),
        (12.3456, "12.35"),
        (123456.7, "123457"),
        (0.001234, "0.001234"),
        (1.5e9, "1.500e+09"),
        (None, "-"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert output.number(value) == text


def test_table_folds_configs_at_commas_and_prose_at_spaces() -> None:
    config = "block_k=64,block_m=128,block_n=256,num_stages=4,policy=full_row"
    lines = table.lines(
        ["#", "config", "why"], [[1, config, "a rule that needs a few words"]], ["#"], ["config", "why"], 60
    )
    assert max(map(len, lines)) <= 60
    folded = [line[3:].split("  ")[0].strip() for line in lines[1:]]
    assert "".join(folded) == config
    assert all(
        part.endswith(",") for part in folded if part and part != folded[-1] and not config.endswith(part)
    )


def test_table_gives_spare_room_to_the_column_that_needs_it() -> None:
    lines = table.lines(["a", "b"], [["short", "word " * 12]], [], ["a", "b"], 70)
    assert len(lines) == 2


def test_numbers_stand_to_the_right() -> None:
    lines = table.lines(["name", "us"], [["x", "1.5"], ["long name", "1234.5"]], ["us"], [], 80)
    assert lines == ["name           us", "x             1.5", "long name  1234.5"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in "".join(table.lines(["a"], [["\x1b[31mred"]], [], [], 80))


def test_empty_table_has_its_heading() -> None:
    assert table.lines(["a", "b"], [], [], ["b"], 80) == ["a  b"]


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json("test", value=math.nan, many=(1, 2.5), flag=True, mapping={"x": math.inf})
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "schema_version": 2,
        "kind": "test",
        "value": None,
        "many": [1, 2.5],
        "flag": True,
        "mapping": {"x": None},
    }


# ---- widths

SHORT = ["matmul M0", "h200", "verified", "12.50", "warm", "block_m=1,block_n=2,policy=full_row"]
COLUMNS = ["workload", "target", "status", "us", "protocol", "config"]
FOLDED = ["workload", "protocol", "config"]


def _printed(capsys: pytest.CaptureFixture[str], rows: list[list[str]]) -> list[str]:
    output.print_table(COLUMNS, rows, right=["us"], folded=FOLDED)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [20, 25, 30, 40, 50, 60, 80, 100, 132, 300])
def test_a_table_can_be_read_at_any_width(
    width: int, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(width)
    lines = _printed(capsys, [SHORT, SHORT])
    assert max(map(len, lines)) <= width
    squeezed = "".join("".join(lines).split())
    for cell in ("h200", "verified", "12.50"):
        assert any(cell in line.split() for line in lines), lines  # never cut
    if width >= 100:
        assert "block_m=1,block_n=2,policy=full_row" in lines[1]
        assert len(lines) == 3
    if width <= 50:  # a block for each row, with a line between
        assert lines[0].split() == ["workload", "matmul", "M0"]
        assert lines.count("") == 1
        assert squeezed.count("policy=full_row") == 2


def test_a_wide_terminal_is_used(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(160)
    row = [*SHORT[:-1], "block_m=1," * 9]
    assert len(_printed(capsys, [row])) == 2


def test_where_there_is_no_terminal_a_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    long = "block_k=64," * 60
    lines = _printed(capsys, [[*SHORT[:-1], long + "\nx\x1b[31m"], ["very long " * 50, *SHORT[1:]]])
    assert len(lines) == 3
    assert lines[1].endswith(long + " x [31m")
    assert len(lines[1]) < 200 + 60 + len(long) + 20  # no cell pads the others without end
    assert "\x1b" not in "".join(lines)


def test_a_block_of_a_table_without_rows_is_empty(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(20)
    assert _printed(capsys, []) == []
