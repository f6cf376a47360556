"""Numbers and tables."""

from __future__ import annotations

import json
import math

import pytest

from tilesight.cli import output
from tilesight.cli import text_table as table


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
