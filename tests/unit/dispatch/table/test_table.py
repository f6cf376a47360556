"""Dispatch tables: choices, refusals, and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilesight.dispatch.table.table_file import (
    FORMAT,
    MAX_BYTES,
    DispatchTable,
    Evidence,
    Segment,
    read_table,
    write_table,
)
from tilesight.dispatch.table.table_reader import parse_table
from tilesight.errors import InputError
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.session import Context

SMALL, LARGE = (
    Config({"block_m": 16, "fast": True, "policy": "square"}),
    Config({"block_m": 128, "fast": False, "policy": "square"}),
)


def table(**changes: Any) -> DispatchTable:
    made = DispatchTable(
        operator="matmul",
        dtype="bfloat16",
        attrs={"causal": True},
        dims=("m", "n", "k"),
        fixed={"n": 64, "k": 32},
        vary="m",
        dynamic=("m",),
        template="matmul",
        template_version="abc",
        target="h200",
        target_fingerprint="f00",
        arch="sm_90a",
        device="NVIDIA H200",
        protocol="v2 cold",
        software={"tilelang": "0.1.15", "nvcc": "13.0"},
        model="m1",
        kernels=(SMALL, LARGE),
        segments=(Segment(1, 16, 0), Segment(17, 100, 1), Segment(101, 101, 0), Segment(102, 4096, 1)),
        evidence=(Evidence(1, 0, 10.5, 10.0, True, True), Evidence(4096, 1, 99.0, 99.0, False, False)),
    )
    return replace(made, **changes)


def context(**changes: Any) -> Context:
    workload = Workload("matmul", {"m": 7, "n": 64, "k": 32}, "bfloat16", {"causal": True})
    software = {"tilelang": "0.1.15", "nvcc": "13.0", "driver": "580", "torch": "2.11"}
    made = Context(
        "matmul",
        "abc",
        workload,
        "h200",
        "f00",
        "sm_90a",
        "m2",
        "s",
        software,
        "NVIDIA H200",
        "v2 cold",
        ("m",),
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("size", "config", "segment"),
    [
        (1, SMALL, 0),
        (16, SMALL, 0),
        (17, LARGE, 1),
        (100, LARGE, 1),
        (101, SMALL, 2),
        (102, LARGE, 3),
        (4096, LARGE, 3),
    ],
)
def test_each_size_has_the_kernel_of_its_segment(size: int, config: Config, segment: int) -> None:
    chosen = table().choose(size)
    assert chosen.config == config
    assert chosen.segment == table().segments[segment]
    assert size in table()


@pytest.mark.parametrize("size", [0, -3, 4097])
def test_sizes_outside_are_refused(size: int) -> None:
    assert size not in table()
    with pytest.raises(InputError, match=rf"m={size} is outside the table, which covers 1 .. 4096"):
        table().choose(size)


def test_a_file_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_table(table(), path)
    assert read_table(path) == table()
    assert path.read_text() == table().text()
    write_table(replace(table(), device=""), path)
    assert read_table(path).device == ""


def test_the_text_has_a_line_for_each_kernel_segment_and_piece_of_evidence() -> None:
    lines = table().text().splitlines()
    assert '    {"first": 17, "last": 100, "kernel": 1},' in lines
    assert '    {"block_m": 16, "fast": true, "policy": "square"},' in lines
    assert any(
        '"size": 1, "kernel": 0, "chosen_us": 10.5' in line and '"loss": 0.05}' in line for line in lines
    )
    other = replace(table(), segments=(Segment(1, 15, 0), Segment(16, 100, 1), *table().segments[2:]))
    differing = [pair for pair in zip(lines, other.text().splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(differing) == 2


def test_the_text_does_not_depend_on_the_order_of_mappings() -> None:
    turned = replace(table(), software={"nvcc": "13.0", "tilelang": "0.1.15"}, fixed={"k": 32, "n": 64})
    assert turned.text() == table().text()


def test_workloads_have_their_dimensions_in_the_operators_order() -> None:
    found = table().workload(7)
    assert found.key == "matmul(m=7,n=64,k=32;causal=true,dtype=bfloat16)"
    assert table().covers(found)
    assert not table().covers(Workload("matmul", {"m": 7, "n": 65, "k": 32}, "bfloat16", {"causal": True}))
    assert not table().covers(Workload("matmul", {"m": 4097, "n": 64, "k": 32}, "bfloat16", {"causal": True}))
    assert not table().covers(Workload("matmul", {"m": 7, "n": 64, "k": 32}, "float16", {"causal": True}))
    assert not table().covers(Workload("matmul", {"m": 7, "n": 64, "k": 32}, "bfloat16", {"causal": False}))
    assert not table().covers(Workload("gemv", {"n": 64, "k": 32}, "bfloat16"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segments": ()}, "segments: a table has one segment at least"),
        ({"kernels": (), "evidence": ()}, "kernels: a table has one kernel at least"),
        ({"segments": (Segment(1, 5, 0), Segment(7, 9, 0))}, r"segments\[1\].first: 7 must follow 5"),
        ({"segments": (Segment(1, 5, 0), Segment(5, 9, 0))}, r"segments\[1\].first: 5 must follow 5"),
        ({"segments": (Segment(9, 5, 0),)}, r"segments\[0\].last: 5 lies before first=9"),
        ({"segments": (Segment(1, 5, 2),)}, r"segments\[0\].kernel: 2 is none of the 2 kernels"),
        ({"segments": (Segment(1, 5, -1),)}, r"segments\[0\].kernel: -1 is none"),
        ({"evidence": (Evidence(1, 7, 1.0, 1.0, True, True),)}, r"evidence\[0\].kernel: 7 is none"),
        ({"evidence": (Evidence(9999, 0, 1.0, 1.0, True, True),)}, r"evidence\[0\].size: 9999 lies outside"),
        ({"fixed": {"m": 3, "n": 64, "k": 32}}, "fixed: m is varied and cannot be fixed too"),
        ({"dims": ("m", "n")}, "dims: m, n must be m and those that are fixed: k, n"),
        ({"dynamic": ("n",)}, "dynamic: kernels that take n at run time do not cover sizes of m"),
        ({"dynamic": ("m", "q")}, "dynamic: m, q must be among the dimensions"),
        ({"dynamic": ("m", "m")}, "dynamic: m, m names a dimension twice"),
    ],
)
def test_contradicting_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        table(**changes)


def test_a_table_matches_under_any_torch_and_driver() -> None:
    assert table().mismatches(context()) == []
    assert table().mismatches(context(software={"tilelang": "0.1.15", "nvcc": "13.0", "driver": "590"})) == []
    assert table().mismatches(context(device="", protocol="")) == []  # nothing is measured there


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"template_version": "abd"}, "template version: the table was made for abc, here it is abd"),
        ({"template": "other"}, "template: the table was made for matmul"),
        ({"arch": "sm_80"}, "architecture: the table was made for sm_90a, here it is sm_80"),
        ({"target": "h100"}, "target: the table was made for h200"),
        ({"target_fingerprint": "f01"}, "figures of the target"),
        ({"device": "NVIDIA H100"}, "device: the table was made for NVIDIA H200, here it is NVIDIA H100"),
        ({"protocol": "v2 warm"}, "protocol: the table was made for v2 cold, here it is v2 warm"),
        (
            {"software": {"tilelang": "0.1.16", "nvcc": "13.0"}},
            "software tilelang: the table was made with 0.1.15, here it is 0.1.16",
        ),
        (
            {"software": {"tilelang": "0.1.15"}},
            "software nvcc: the table was made with 13.0, here it is none",
        ),
        (
            {"workload": Workload("matmul", {"m": 7, "n": 64, "k": 33}, "bfloat16", {"causal": True})},
            "fixed dimensions: .*k=32.*k=33",
        ),
        (
            {"workload": Workload("matmul", {"m": 7, "n": 64, "k": 32}, "float16", {"causal": True})},
            "dtype: .*bfloat16.*float16",
        ),
        (
            {"workload": Workload("matmul", {"m": 7, "n": 64, "k": 32}, "bfloat16", {"causal": False})},
            "attributes",
        ),
    ],
)
def test_mismatches_are_described(changes: dict[str, Any], message: str) -> None:
    import re

    (said,) = table().mismatches(context(**changes))
    assert re.match(message, said)


def changed(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set `value` at `path` (`segments.0.first`) of a table's fields; `None` removes the field."""

    def change(fields: dict[str, Any]) -> None:
        *way, last = path.split(".")
        at: Any = fields
        for name in way:
            at = at[int(name)] if name.isdecimal() else at[name]
        if value is None:
            del at[last]
        else:
            at[int(last) if last.isdecimal() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("format", FORMAT + 1), "format: 2 is not known to this TileSight"),
        (changed("format", None), "it lacks format"),
        (changed("format", "1"), "format: '1' must be a whole number"),
        (changed("extra", 3), "'extra' is not a field of it"),
        (changed("vary", None), "it lacks vary"),
        (changed("operator", 7), "operator: 7 must be text"),
        (changed("operator", "x" * 500), "operator: .*1 to 400 printable"),
        (changed("operator", "a\x1b[31mb"), "operator: .*printable"),
        (changed("operator", ""), "operator: '' must be 1 to 400"),
        (changed("attrs.causal", [1]), r"attrs.causal: \[1\] must be a number"),
        (changed("fixed.n", 0), "fixed.n: 0 must lie in 1"),
        (changed("fixed.n", True), "fixed.n: True must be a whole number"),
        (changed("fixed", []), "fixed: .* must be an object"),
        (changed("dynamic", "m"), "dynamic: 'm' must be a list"),
        (changed("dynamic.0", 3), r"dynamic\[0\]: 3 must be text"),
        (changed("template.version", None), "template: it lacks version"),
        (changed("software.nvcc", 13), "software.nvcc: 13 must be text"),
        (changed("kernels.0", {}), r"kernels\[0\]: a kernel has parameters"),
        (changed("kernels.0.block_m", 2.5), r"kernels\[0\].block_m: 2.5 must be a whole number"),
        (changed("kernels.0.block_m", [1]), r"kernels\[0\].block_m"),
        (changed("segments.1.first", 18), r"segments\[1\].first: 18 must follow 16"),
        (changed("segments.1.first", 10**40), r"segments\[1\].first: .* must lie in"),
        (changed("segments.1.kernel", "0"), r"segments\[1\].kernel: '0' must be a whole number"),
        (changed("segments.1.kernel", 9), r"segments\[1\].kernel: 9 is none of the 2 kernels"),
        (
            changed("segments.1", [17, 100, 1]),
            r"segments\[1\]: .* must be an object with first, last, kernel",
        ),
        (changed("evidence.0.chosen_us", -1), r"evidence\[0\].chosen_us: -1 must be a time"),
        (changed("evidence.0.chosen_us", 1e300), r"evidence\[0\].chosen_us: 1e\+300 must be a time"),
        (
            changed("evidence.0.chosen", "guessed"),
            r"evidence\[0\].chosen: 'guessed' must be 'measured' or 'predicted'",
        ),
        (changed("evidence.0.chosen", ["measured"]), r"evidence\[0\].chosen"),
        (
            changed("evidence.0.loss", 0.5),
            r"evidence\[0\].loss: 0.5 is not what chosen_us and best_us make it, 0.0500",
        ),
        (changed("evidence.0.loss", "0.05"), r"evidence\[0\].loss"),
        (changed("evidence.0.size", 5000), r"evidence\[0\].size: 5000 lies outside"),
    ],
)
def test_every_field_of_a_file_is_checked(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    fields = json.loads(table().text())
    change(fields)
    path = tmp_path / "t.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match=f"(?s)dispatch table '.*t.json': .*{message}"):
        read_table(path)


def test_a_table_with_the_former_name_of_a_field_says_how_to_get_a_new_one(tmp_path: Path) -> None:
    fields = json.loads(table().text())
    fields["open"] = fields.pop("dynamic")
    path = tmp_path / "t.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError) as raised:
        read_table(path)
    assert str(raised.value) == (
        f"dispatch table '{path}': an older TileSight wrote it, with field 'open' in place of 'dynamic'; "
        "make a new one with `tilesight plan`"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not JSON"),
        ("[]", "the table: .* must be an object"),
        ("null", "must be an object"),
        ('{"format": 1, "format": 1}', "'format' occurs twice"),
        ('{"format": NaN}', "NaN is not a number in JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"format": ' + "9" * 5000 + "}", "it is not JSON"),
        ('{"format": 1e999}', "must be a whole number"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_table(text)


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dispatch table '.*none.json' cannot be read: No such file"):
        read_table(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="it is not UTF-8 text"):
        read_table(tmp_path / "b.json")
    (tmp_path / "large.json").write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_table(tmp_path / "large.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_table(table(), tmp_path / "no" / "such.json")


def test_a_file_that_cannot_be_replaced_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    write_table(table(), path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_table(replace(table(), device="other"), path)
    assert read_table(path) == table()
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
