"""Files of shapes: written from misses, edited by hand, and read again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tilesight.errors import InputError
from tilesight.kernels import operator
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.shapes_file import misses_text, read_shapes, shape_text, write_misses
from tilesight.records.winners import Miss

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def miss(workload: Workload, count: int, us: float | None) -> Miss:
    return Miss(workload, "h200", "NVIDIA H200", "t", count, Config({"a": 1}), "default", us, NOW, NOW)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    one = operator("flash_attention").workload("batch=1,heads=8,seq_len=512,head_dim=128,causal=true")
    other = operator("matmul").workload("m=777,n=8192,k=8192,layout=nt", "float16")
    path = tmp_path / "shapes.txt"
    write_misses(path, [miss(one, 3, 10.5), miss(other, 1, 2.0)])
    first, second = read_shapes(path)
    assert operator(first.kernel).workload(first.shape, first.dtype) == one
    assert operator(second.kernel).workload(second.shape, second.dtype) == other
    assert (first.weight, second.weight) == (31.5, 2.0)
    text = path.read_text()
    assert "# 3 calls of 10.5 us, default" in text
    assert "# 1 call of 2 us, default" in text
    assert "on h200 (NVIDIA H200) had no record of" in text


def test_weights_are_counts_if_a_time_is_unknown() -> None:
    workload = operator("matmul").workload("M0")
    text = misses_text([miss(workload, 30, None), miss(replace(workload, dtype="float16"), 7, 2.0)])
    assert "# weight: number of calls" in text
    words = [line.split("#")[0].split() for line in text.splitlines() if not line.startswith("#")]
    assert [word[3] for word in words] == ["30", "7"]
    assert shape_text(workload) in text


def test_a_person_writes_less(tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("# by hand\n\nmatmul M0\ngemv m=8,k=16 float16  # no weight\n")
    first, second = read_shapes(path)
    assert (first.kernel, first.shape, first.dtype, first.weight) == ("matmul", "M0", None, None)
    assert (second.dtype, second.weight, second.origin) == ("float16", None, f"{path}, line 4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("matmul\n", r"line 1: 'matmul' must be: KERNEL SHAPE \[DTYPE \[WEIGHT\]\]"),
        ("# x\nmatmul M0 float16 1 2\n", "line 2"),
        ("matmul M0 float16 0\n", "the weight '0' must be a number above 0"),
        ("matmul M0 float16 nan\n", "the weight 'nan'"),
        ("matmul M0 float16 much\n", "the weight 'much'"),
        ("# nothing\n", "has no line KERNEL SHAPE"),
    ],
)
def test_wrong_lines_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_shapes(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_shapes(tmp_path / "none.txt")
