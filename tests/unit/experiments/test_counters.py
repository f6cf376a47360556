"""experiments/counters: reading ncu's output, matching launches to candidates, and the comparison with the
model.
"""

from __future__ import annotations

import importlib
import json
import math
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.target.spec import load_target

FOLDER = Path(__file__).parents[3] / "experiments" / "counters"

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC",'
)
METRICS = (
    '"dram__bytes_read.sum","gpu__time_duration.sum","launch__registers_per_thread",'
    '"sm__cycles_elapsed.avg.per_second","sm__warps_active.avg.pct_of_peak_sustained_active"'
)
FIRST = '"0","4711","python3.12","127.0.0.1","main_kernel","1","7","(384, 1, 1)","(8, 16, 1)","0","9.0",'
SECOND = '"1","4711","python3.12","127.0.0.1","main_kernel_1","1","7","(128, 1, 1)","(8, 4, 1)","0","9.0",'
WIDE = f"""==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "main_kernel" - 0: 0%....50%....100% - 7 passes
{HEADER}{METRICS}
"","","","","","","","","","","","byte","ns","register/thread","hz","%"
{SECOND}"1,000","30,000","40","1,800,000,000","50"
{FIRST}"83,900,000","90,000","168","1,600,000,000","18.3"
==PROF== Disconnected from process 4711
"""
SECTION = f'{FIRST}"Command line profiler metrics",'
LONG = f"""{HEADER}"Section Name","Metric Name","Metric Unit","Metric Value"
{SECTION}"dram__bytes_read.sum","Mbyte","83.9"
{SECTION}"gpu__time_duration.sum","usecond","90"
{SECTION}"dram__throughput.avg.pct_of_peak_sustained_elapsed","","n/a"
"""


@pytest.fixture(scope="module", autouse=True)
def on_path() -> Any:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture
def ncu() -> Any:
    return importlib.import_module("ncu")


@pytest.fixture
def collecting() -> Any:
    return importlib.import_module("collect_counters")


@pytest.fixture
def compare() -> Any:
    return importlib.import_module("compare")


def test_the_raw_page_is_read_in_the_order_of_the_launches(ncu: Any) -> None:
    first, second = ncu.parse(WIDE)
    assert (first.kernel, first.grid, first.block) == ("main_kernel", (8, 16, 1), (384, 1, 1))
    assert first.metrics["dram__bytes_read.sum"] == 83_900_000
    assert first.metrics["gpu__time_duration.sum"] == pytest.approx(90e-6)
    assert second.metrics["launch__registers_per_thread"] == 40


def test_the_long_form_gives_the_same_and_leaves_out_what_is_not_available(ncu: Any) -> None:
    (launch,) = ncu.parse(LONG)
    assert launch.metrics == pytest.approx({"dram__bytes_read.sum": 83.9e6, "gpu__time_duration.sum": 90e-6})
    assert ncu.parse("==ERROR== No kernels were profiled.\n") == []


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("Gbyte", 1e9),
        ("msecond", 1e-3),
        ("ns", 1e-9),
        ("cycle/nsecond", 1e9),
        ("Ghz", 1e9),
        ("inst", 1),
        ("Kbyte/block", 1e3),
    ],
)
def test_units(ncu: Any, unit: str, factor: float) -> None:
    assert ncu._factor(unit) == pytest.approx(factor)


def test_counters_of_a_candidate_with_two_kernels(ncu: Any) -> None:
    known = {"gpu__time_duration", "sm__cycles_elapsed", "dram__bytes_read", "sm__warps_active"}
    found = ncu.counters(ncu.parse(WIDE), ncu.choose(known))
    assert found["duration_us"] == pytest.approx(120)
    assert found["dram_read_bytes"] == pytest.approx(83_901_000)
    assert found["sm_clock_mhz"] == pytest.approx((90 * 1600 + 30 * 1800) / 120)
    assert found["occupancy"] == pytest.approx((90 * 0.183 + 30 * 0.5) / 120)
    assert found["registers"] == 168


def test_a_metric_that_does_not_exist_gives_way_to_the_next_or_to_a_note(ncu: Any) -> None:
    choice = ncu.choose(
        {"gpu__time_duration", "gpc__cycles_elapsed", "lts__t_bytes"}, refused=["gpu__time_duration.sum"]
    )
    assert choice.taken["sm_clock_mhz"] == ("gpc__cycles_elapsed.avg.per_second", 1e-6)
    assert choice.taken["l2_bytes"] == ("lts__t_bytes.sum", 1.0)
    assert "duration_us" not in choice.taken
    assert any(note.startswith("duration_us: none of gpu__time_duration.sum") for note in choice.notes)
    assert set(ncu.choose(None).taken) == {counter.key for counter in ncu.COUNTERS}


def test_the_list_of_metrics_and_refusals_are_read(ncu: Any) -> None:
    listed = "Device NVIDIA H200 (GH100)\n-----\nMetric Name     Metric Type\n--------\n"
    listed += "dram__bytes_read        Counter         # of bytes\n"
    assert ncu.parse_query(listed) == {"dram__bytes_read"}
    assert ncu.refused_metrics("==ERROR== Failed to find metric sm__nothing.sum\n") == {"sm__nothing.sum"}


def item(
    collecting: Any, number: int, grid: tuple[int, int, int] = (8, 16, 1), threads: int = 384, **more: Any
) -> Any:
    return collecting.Item(number, "case", "matmul", "m=1,n=1,k=1", "bfloat16", ((grid, threads),), **more)


def test_a_kernel_gets_the_scratch_memory_that_its_template_asks_for(
    collecting: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the row of a dataset to the tensors of the launch, for every way to ask for such memory."""
    import pandas as pd

    from tilesight.executor import jobs, local
    from tilesight.kernels import operator, template_for
    from tilesight.records.trial import BuildResult
    from tilesight.runner.bench import BenchCase, InputSet

    launching = importlib.import_module("launch")
    target = load_target("h200")
    cases = (
        ("flash_attention_bwd", "batch=1,heads=2,seq_len=128,head_dim=64", {}),
        ("flash_decoding", "batch=1,heads=8,kv_heads=2,kv_len=256,head_dim=64", {"split_k": 2}),
        ("matmul", "m=64,n=64,k=512", {"split_k": 2}),
        ("rms_norm", "m=64,n=128", {}),
    )
    rows, wanted = [], []
    for name, shape, values in cases:
        template, workload = (
            template_for(name, target, "bfloat16"),
            operator(name).workload(shape, "bfloat16"),
        )
        config = template.default_config(workload, target)
        assert config is not None
        config = type(config)({**config, **values})
        version = {"template": template.name, "template_version": template.version}
        rows.append({"target": "h200", "config": json.dumps(dict(config)), **version})
        wanted.append((operator(name), workload, len(template.build(workload, config).params)))

    class Executor(local.LocalExecutor):
        """Every build ends well, with a library that is not there."""

        def __init__(self, *_: object) -> None:
            pass

        def stream(self, source: Any) -> Any:
            for job in source.left:
                yield jobs.BuildDone(job, BuildResult(artifact="kernel.so", entry="call"))

        def close(self) -> None:
            pass

    class Source:
        def __init__(self, left: Any) -> None:
            self.left = left

    monkeypatch.setattr(local, "LocalExecutor", Executor)
    monkeypatch.setattr(jobs, "SingleLaneSource", Source)
    items = [
        collecting.Item(number, "case", name, shape, "bfloat16", ())
        for number, (name, shape, _) in enumerate(cases)
    ]
    built = list(collecting.build(items, pd.DataFrame(rows), tmp_path, 1, math.inf))
    counts = []
    for found, (of, workload, number) in zip(built, wanted, strict=True):
        scratch = json.loads(json.dumps(found.job()))["scratch"]
        case = BenchCase(of, workload, 0, (InputSet(of.inputs(workload, "cpu", 0), {}, {}),))
        assert len(launching.tensors_of(case, scratch)) == number
        counts.append(len(scratch))
    assert min(counts[:3]) > 0 == counts[3]


def launch(ncu: Any, grid: tuple[int, int, int] = (8, 16, 1), threads: int = 384) -> Any:
    return ncu.Launch("main_kernel", grid, (threads, 1, 1), {"gpu__time_duration.sum": 1e-5})


def test_launches_go_to_their_candidates_by_order(ncu: Any, collecting: Any) -> None:
    launches = [launch(ncu), launch(ncu, (4, 4, 1), 128)]
    found, odd = collecting.match(launches, [item(collecting, 7), item(collecting, 3, (4, 4, 1), 128)])
    assert (found, odd) == ({7: [launches[0]], 3: [launches[1]]}, {})


def test_a_launch_of_another_shape_is_not_believed(ncu: Any, collecting: Any) -> None:
    items = [item(collecting, 1), item(collecting, 2, threads=256)]
    found, odd = collecting.match([launch(ncu), launch(ncu)], items)
    assert list(found) == [1]
    assert "256 threads" in odd[2]
    with pytest.raises(collecting.MismatchError, match="missing"):  # which launch is missing cannot be told
        collecting.match([launch(ncu), launch(ncu)], [*items, item(collecting, 3)])
    with pytest.raises(collecting.MismatchError, match="3 launches where 2"):
        collecting.match([launch(ncu)] * 3, items)


def test_a_profiler_that_died_gives_what_it_had(ncu: Any, collecting: Any) -> None:
    found, odd = collecting.match([launch(ncu)], [item(collecting, 1), item(collecting, 2)])
    assert (list(found), odd) == ([1], {})


def test_a_sample_has_the_fastest_the_slowest_and_one_that_spills(collecting: Any) -> None:
    times = [(number, 10.0 + number, number == 50) for number in range(100)]
    picked = collecting.sample(times, 12)
    assert len(picked) == len(set(picked)) == 12
    assert {0, 1, 2, 3, 50, 99} <= set(picked)
    assert len([n for n in picked if n > 50]) >= 3
    assert collecting.sample(times[:5], 12) == [0, 1, 2, 3, 4]
    assert len(collecting.sample(times, 5)) == 5


def fake_ncu(folder: Path, body: str) -> str:
    """A profiler of the same command line: `body` has `job`, `log` (write events), `rows` (what the CSV will
    have).
    """
    script = folder / "ncu"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys, os, time\n"
        "if '--query-metrics' in sys.argv:\n    print('gpu__time_duration   Counter'); sys.exit(0)\n"
        "out = open(sys.argv[sys.argv.index('--log-file') + 1], 'w')\n"
        "metrics = sys.argv[sys.argv.index('--metrics') + 1].split(',')\n"
        "job = json.load(open(sys.argv[-1]))\nrows = []\n"
        "def log(event, item, **more):\n"
        "    row = {'event': event, 'number': item['number'], **more}\n"
        "    open(job['log'], 'a').write(json.dumps(row) + chr(10))\n"
        + body
        + f"\nheader = {HEADER!r} + ','.join('\"%s\"' % m for m in metrics)\n"
        "units = ['byte' if 'bytes' in m else 'ns' for m in metrics]\n"
        "out.write(header + chr(10) + '\"\",' * 11 + ','.join('\"%s\"' % u for u in units) + chr(10))\n"
        "for i, grid in enumerate(rows):\n"
        '    out.write(f\'"{i}","1","python","h","main_kernel","1","7","(384, 1, 1)","{grid}","0","9.0",\')\n'
        "    out.write(','.join('\"1,000\"' for m in metrics) + chr(10))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def kept_by(
    collecting: Any, items: list[Any], tool: str, seconds: float = 120.0
) -> tuple[dict[int, Any], dict[int, str], list[str]]:
    found: dict[int, Any] = {}
    failed: dict[int, str] = {}

    def keep(number: int, counters: Any, why: str) -> None:
        if counters:
            found[number] = counters
        else:
            failed[number] = why

    notes = collecting.collect(items, tool, time.time() + seconds, keep)
    return found, failed, notes


def test_a_kernel_that_kills_its_process_costs_itself_only(collecting: Any, tmp_path: Path) -> None:
    body = (
        "for item in job['items']:\n"
        "    log('begin', item)\n"
        "    if item['number'] == 2: break\n"
        "    rows.append('(8, 16, 1)'); log('end', item)\n"
    )
    items = [item(collecting, number) for number in (1, 2, 3, 4)]
    found, failed, _ = kept_by(collecting, items, fake_ncu(tmp_path, body))
    assert sorted(found) == [1, 3, 4]
    assert list(failed) == [2]
    assert "ended while it ran" in failed[2]
    assert found[1]["duration_us"] == pytest.approx(1.0)


def test_metrics_that_ncu_refuses_are_dropped_and_named(collecting: Any, tmp_path: Path) -> None:
    body = (
        "if 'launch__registers_per_thread' in metrics:\n"
        "    print('==ERROR== Failed to find metric launch__registers_per_thread'); sys.exit(1)\n"
        "for item in job['items']:\n    log('begin', item); rows.append('(8, 16, 1)'); log('end', item)\n"
    )
    found, failed, notes = kept_by(collecting, [item(collecting, 1)], fake_ncu(tmp_path, body))
    assert (list(found), failed) == ([1], {})
    assert "registers" not in found[1]
    assert "ncu refused launch__registers_per_thread" in notes


def test_a_profiler_that_gives_nothing_is_given_up(collecting: Any, tmp_path: Path) -> None:
    found, failed, notes = kept_by(
        collecting, [item(collecting, 1)], fake_ncu(tmp_path, "print('ERR_NVGPUCTRPERM'); sys.exit(1)\n")
    )
    assert (found, failed) == ({}, {})
    assert any("gave up" in note and "ERR_NVGPUCTRPERM" in note for note in notes)


def test_no_process_is_started_when_the_budget_is_spent(collecting: Any, tmp_path: Path) -> None:
    found, failed, _ = kept_by(
        collecting, [item(collecting, 1)], fake_ncu(tmp_path, "raise SystemExit(9)\n"), seconds=5
    )
    assert (found, failed) == ({}, {})


def test_the_journal_of_an_earlier_call_is_taken_over(collecting: Any, tmp_path: Path) -> None:
    journal = tmp_path / "out.jsonl"
    lines = [
        {"key": "b", "counters": {"registers": 168.0}, "why": ""},
        {"key": "c", "counters": None, "why": "not built"},
    ]
    journal.write_text(
        "\n".join(map(json.dumps, [*lines, {"key": "gone", "counters": {"x": 1.0}, "why": ""}]))
    )
    assert collecting._read_journal(journal, {0: "a", 1: "b", 2: "c"}) == ({1: {"registers": 168.0}}, {2})
    assert collecting._read_journal(tmp_path / "none", {0: "a"}) == ({}, set())


def test_shapes_are_spelt_as_operators_read_them(collecting: Any) -> None:
    text = collecting.shape_text('{"batch": 1, "heads": 32}', '{"causal": true}')
    assert text == "batch=1,heads=32,causal=true"


def said(compare: Any, **expected: float) -> Any:
    prediction = SimpleNamespace(
        latency_us=103.0,
        terms_us={"launch": 3.0},
        utilization={"matrix": 0.5, "issue": 0.25, "shared": 0.1},
        expected=expected,
    )
    return compare.PredictedTerms(prediction, load_target("h200"))


def test_shares_are_of_the_time_without_the_launch(compare: Any) -> None:
    terms = {term.name: term for term in compare.TERMS}
    found = said(compare, dram_read_bytes=4.0e8, dram_write_bytes=0.8e8)
    assert terms["matrix pipe busy"].predicted(found) == pytest.approx(0.515)
    assert terms["DRAM busy"].predicted(found) == pytest.approx(1.0)
    assert terms["L2 hits"].predicted(found) is None
    assert (
        terms["L2 hits of cores' requests"].counted({"l2_core_hit_bytes": 3.0, "l2_core_miss_bytes": 1.0})
        == 0.75
    )
    assert terms["local bytes (spills)"].counted({"local_load_bytes": 1.0}) is None


def test_errors_are_points_or_ratios(compare: Any) -> None:
    terms = {term.name: term for term in compare.TERMS}

    def pair(name: str, predicted: float, counted: float) -> Any:
        return compare.Pair("case", "matmul", "{}", terms[name], predicted, counted)

    assert pair("matrix pipe busy", 0.5, 0.6).error == pytest.approx(-10)
    assert pair("clock", 1700, 1600).error == pytest.approx(0.0625)
    assert pair("local bytes (spills)", 0, 0).error == 0
    assert math.isinf(pair("local bytes (spills)", 4096, 0).error)
    group = [
        pair("local bytes (spills)", 4096, 0),
        pair("local bytes (spills)", 105, 100),
        pair("local bytes (spills)", 50, 100),
    ]
    summary = compare.summarise(group)
    assert (summary.rows, summary.one_sided) == (3, 1)
    assert summary.mean_absolute == pytest.approx(0.275)
    assert summary.median_absolute == pytest.approx(0.275)
    assert summary.bias == pytest.approx(-0.225)
    assert summary.within == pytest.approx(1 / 3)
    table = compare.overall_table([*group, pair("matrix pipe busy", 0.5, 0.6)])
    assert table[2].startswith("| matrix pipe busy | 1 | 10.0 points | 10.0 points | -10.0 points | 0 %")
    assert len(compare.case_table(group)) == 3
