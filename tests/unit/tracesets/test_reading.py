"""Workloads of a data set as shapes: each once, the most frequent first; what is left out, with reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilesight.errors import InputError
from tilesight.tracesets.reading import read_trace_shapes

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
        "axes must be whole numbers above 0: {'M': 0}",
        "axes must be whole numbers above 0: {'M': 'many'}",
        "no JSON",
        "no workload: KeyError: 'workload'",
        "has no workloads of it",
    )
    for text, part in zip(reasons, parts, strict=True):
        assert part in text
        assert "\n" not in text


def test_a_folder_without_definitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^--workloads .* has no definitions/\*\*/\*\.json; name a data set"
    ):
        read_trace_shapes(tmp_path)
