"""Workloads of a data set as shapes: each once, the most frequent first; what is left out, with reasons."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tilesight.errors import InputError
from tilesight.tracesets.reading import LeftOut, left_out_lines, read_trace_shapes

GEMM = {
    "name": "gemm_n16_k32",
    "op_type": "gemm",
    "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 16}, "K": {"type": "const", "value": 32}},
    "inputs": {
        "A": {"shape": ["M", "K"], "dtype": "float16"},
        "B": {"shape": ["N", "K"], "dtype": "float16"},
    },
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "raise RuntimeError('nothing of a data set is executed')",
    "tags": ["status:verified"],
}


def write(folder: Path, definitions: list[Any], lines: list[Any]) -> Path:
    (folder / "definitions" / "some").mkdir(parents=True)
    (folder / "workloads" / "some").mkdir(parents=True)
    for number, definition in enumerate(definitions):
        text = definition if isinstance(definition, str) else json.dumps(definition)
        (folder / "definitions" / "some" / f"{number}.json").write_text(text)
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "workloads" / "some" / "all.jsonl").write_text(text)
    return folder


def line(name: str, axes: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    return {"definition": name, "workload": {"uuid": "u", "axes": axes, "inputs": inputs}, "solution": None}


def test_shapes_are_counted_and_the_most_frequent_ones_come_first(tmp_path: Path) -> None:
    sizes = (4, 7, 7, 9, 7, 9)
    write(tmp_path, [GEMM], [line("gemm_n16_k32", {"M": m}) for m in sizes])
    found = read_trace_shapes(tmp_path)
    assert [(one.shape, one.weight) for one in found.shapes] == [
        ("m=7,n=16,k=32,layout=nt", 3),
        ("m=9,n=16,k=32,layout=nt", 2),
        ("m=4,n=16,k=32,layout=nt", 1),
    ]
    assert {(one.kernel, one.dtype, one.origin) for one in found.shapes} == {
        ("matmul", "float16", "gemm_n16_k32")
    }
    assert found.left_out == ()


def test_what_is_left_out_has_its_name_and_reason_once(tmp_path: Path) -> None:
    other = {**GEMM, "name": "moe_x", "op_type": "moe"}
    unused = {**GEMM, "name": "gemm_unused"}
    lines = [
        line("gemm_n16_k32", {"M": 4}),
        line("moe_x", {"M": 4}),
        line("moe_x", {"M": 5}),
        line("unknown", {"M": 4}),
        line("gemm_n16_k32", {"M": 0}),
        line("gemm_n16_k32", {"M": "many"}),
        "{",
        {"definition": "gemm_n16_k32"},
        "",
    ]
    write(tmp_path, [GEMM, other, unused, "{", {"name": "half"}], lines)
    found = read_trace_shapes(tmp_path)
    assert [one.shape for one in found.shapes] == ["m=4,n=16,k=32,layout=nt"]
    reasons = [one.text for one in found.left_out]
    assert [text.split(":")[1].strip() for text in reasons] == [
        "definitions/some/3.json",
        "definitions/some/4.json",
        "moe_x",
        "unknown",
        *(f"workloads/some/all.jsonl, line {number}" for number in (5, 6, 7, 8)),
        "gemm_unused",
    ]
    parts = (
        "no JSON",
        "no definition",
        "op_type moe: it routes tokens",
        "no definition of this name",
        "line 5: axes must be whole numbers above 0: M",
        "line 6: axes must be whole numbers above 0: M",
        "no JSON",
        "no workload: KeyError: 'workload'",
        "has no workloads of it",
    )
    for text, part in zip(reasons, parts, strict=True):
        assert part in text
        assert "\n" not in text
        assert text.count("all.jsonl") < 2


def constant(**axes: Any) -> dict[str, Any]:
    found = {name: {"type": "const", "value": value} for name, value in axes.items()}
    return {**GEMM, "axes": {**GEMM["axes"], **found}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        *((constant(K=value), "axis K is neither var nor a const in 1") for value in (0, -2, True, 2.0)),
        (constant(K=10**400), "axis K is neither var nor a const in 1"),
        ("[" * 100_000 + "]" * 100_000, "its JSON is nested too deeply"),
        ({**GEMM, "name": "two\nlines"}, "its name must be 1 to 200 printable characters"),
        ({**GEMM, "name": ["list"]}, "its name must be 1 to 200 printable characters"),
    ],
)
def test_hostile_definitions_are_left_out(tmp_path: Path, definition: Any, reason: str) -> None:
    write(tmp_path, [definition], [])
    [found] = read_trace_shapes(tmp_path).left_out
    assert found.text.startswith("left out: definitions/some/0.json: it")
    assert reason in found.text
    assert "\n" not in found.text
    assert len(found.text) < 200


def test_hostile_workloads_are_left_out(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    huge = line("gemm_n16_k32", {"M": 3}, scale={"type": "scalar", "value": 10**400})
    other = line("gemm_n16_k32", {"M": 3, "N": 17})
    strange = line("two\nlines\u2028" + "x" * 10**5, {"M": 3})
    separated = json.dumps(line("gemm_n16_k32", {"M": 3}, note="\u2028"), ensure_ascii=False)
    good = line("gemm_n16_k32", {"M": 3}, note={"type": "text \u2028"})
    write(tmp_path, [GEMM], [deep, huge, other, strange, separated, json.dumps(good, ensure_ascii=False)])
    found = read_trace_shapes(tmp_path)
    assert [one.shape for one in found.shapes] == ["m=3,n=16,k=32,layout=nt"]
    texts = [one.text for one in found.left_out]
    place = "left out: workloads/some/all.jsonl, line"
    assert texts[0] == f"{place} 1: its JSON is nested too deeply"
    assert texts[1].startswith(f"{place} 2: it is no workload: OverflowError")
    assert texts[2] == "left out: gemm_n16_k32: its workload states N=17, and it has N=16"
    assert texts[3].startswith(r"left out: two\nlines\u2028xxx")
    assert texts[3].endswith("...: the data set has no definition of this name")
    assert len(texts[3]) < 700
    assert texts[4].startswith(f"{place} 5: it is no workload")
    assert len(texts) == 5


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, [GEMM], [line("gemm_n16_k32", {"M": 3})])
    os.mkfifo(tmp_path / "definitions" / "pipe.json")
    os.mkfifo(tmp_path / "workloads" / "pipe.jsonl")
    (tmp_path / "definitions" / "folder.json").mkdir()
    found = read_trace_shapes(tmp_path)
    assert len(found.shapes) == 1
    assert [one.text for one in found.left_out] == [
        f"left out: {name}: it is no regular file"
        for name in ("definitions/folder.json", "definitions/pipe.json", "workloads/pipe.jsonl")
    ]


def test_at_most_20_different_lines_are_shown() -> None:
    some = [LeftOut(str(number % 25), "reason") for number in range(50)]
    lines = left_out_lines(some)
    assert lines[:20] == [f"left out: {number}: reason" for number in range(20)]
    assert lines[20:] == ["left out: 5 more; --json has all of them"]
    assert left_out_lines(some[:20]) == lines[:20]


def test_a_folder_without_definitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^--workloads .* has no definitions/\*\*/\*\.json; name a data set"
    ):
        read_trace_shapes(tmp_path)
