"""Nsight Compute: the requested counters, their names in a dataset, and the parser of its output."""

import csv
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SHARE, COUNT, MICROSECONDS, MHZ, SECTORS = 0.01, 1.0, 1e6, 1e-6, 32.0
_QUERY_TIMEOUT_S = 60


@dataclass(frozen=True)
class Counter:
    """One value of `counters` in a dataset.

    `metrics` are the metrics that may give it, best first, each with the factor from ncu's base units
    (seconds, bytes, Hz, percent). Over the kernels of a candidate, counts are added, and shares and clocks
    averaged over time.
    """

    key: str
    metrics: tuple[tuple[str, float], ...]
    how: str = "mean"  # sum | mean | largest


def _counter(key: str, how: str, factor: float, *names: str) -> Counter:
    return Counter(key, tuple((name, factor) for name in names), how)


_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
COUNTERS = (
    _counter("duration_us", "sum", MICROSECONDS, "gpu__time_duration.sum"),
    _counter(
        "sm_clock_mhz", "mean", MHZ, "sm__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second"
    ),
    # these count the pipe of both wgmma and mma.sync
    _counter(
        "tensor_active",
        "mean",
        SHARE,
        f"sm__pipe_tensor_cycles_active.{_ELAPSED}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_ELAPSED}",
        f"sm__inst_executed_pipe_tensor_op_hmma.{_ELAPSED}",
    ),
    _counter("dram_read_bytes", "sum", COUNT, "dram__bytes_read.sum"),
    _counter("dram_write_bytes", "sum", COUNT, "dram__bytes_write.sum"),
    _counter(
        "dram_throughput",
        "mean",
        SHARE,
        "dram__bytes.sum.pct_of_peak_sustained_elapsed",
        f"dram__throughput.{_ELAPSED}",
    ),
    # requests of the cores only; lts__t_bytes also has the traffic between the two halves of L2
    Counter("l2_bytes", (("lts__t_sectors_srcunit_tex.sum", SECTORS), ("lts__t_bytes.sum", COUNT)), "sum"),
    Counter("l2_all_bytes", (("lts__t_bytes.sum", COUNT), ("lts__t_sectors.sum", SECTORS)), "sum"),
    _counter("l2_hit", "mean", SHARE, "lts__t_sector_hit_rate.pct"),
    Counter("l2_core_hit_bytes", (("lts__t_sectors_srcunit_tex_lookup_hit.sum", SECTORS),), "sum"),
    Counter("l2_core_miss_bytes", (("lts__t_sectors_srcunit_tex_lookup_miss.sum", SECTORS),), "sum"),
    _counter("l2_throughput", "mean", SHARE, f"lts__t_sectors.{_ELAPSED}", f"lts__throughput.{_ELAPSED}"),
    _counter("xbar_read_bytes", "sum", COUNT, "l1tex__m_xbar2l1tex_read_bytes.sum"),  # what reaches the cores
    _counter("xbar_write_bytes", "sum", COUNT, "l1tex__m_l1tex2xbar_write_bytes.sum"),
    _counter("shared_wavefronts", "sum", COUNT, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    _counter(
        "shared_load_conflicts", "sum", COUNT, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
    ),
    _counter(
        "shared_store_conflicts", "sum", COUNT, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
    ),
    _counter(
        "shared_utilization",
        "mean",
        SHARE,
        f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_ELAPSED}",
        f"l1tex__data_pipe_lsu_wavefronts.{_ELAPSED}",
    ),
    # banks of L1 and shared memory for all accesses, including operands of wgmma and bulk copies
    _counter("bank_reads", "mean", SHARE, f"l1tex__data_bank_reads.{_ELAPSED}"),
    _counter("bank_writes", "mean", SHARE, f"l1tex__data_bank_writes.{_ELAPSED}"),
    _counter(
        "special_instructions",
        "sum",
        COUNT,
        "smsp__inst_executed_pipe_xu.sum",
        "sm__inst_executed_pipe_xu.sum",
    ),
    _counter(
        "fma_instructions", "sum", COUNT, "smsp__inst_executed_pipe_fma.sum", "sm__inst_executed_pipe_fma.sum"
    ),
    _counter(
        "alu_instructions", "sum", COUNT, "smsp__inst_executed_pipe_alu.sum", "sm__inst_executed_pipe_alu.sum"
    ),
    _counter(
        "lsu_instructions", "sum", COUNT, "smsp__inst_executed_pipe_lsu.sum", "sm__inst_executed_pipe_lsu.sum"
    ),
    _counter("instructions", "sum", COUNT, "smsp__inst_executed.sum", "sm__inst_executed.sum"),
    _counter("issue_active", "mean", SHARE, f"smsp__issue_active.{_ELAPSED}", f"sm__inst_issued.{_ELAPSED}"),
    Counter(
        "local_load_bytes",
        (
            ("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", COUNT),
            ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", SECTORS),
        ),
        "sum",
    ),
    Counter(
        "local_store_bytes",
        (
            ("l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", COUNT),
            ("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum", SECTORS),
        ),
        "sum",
    ),
    _counter("occupancy", "mean", SHARE, "sm__warps_active.avg.pct_of_peak_sustained_active"),
    _counter("registers", "largest", COUNT, "launch__registers_per_thread"),
)


@dataclass(frozen=True)
class Launch:
    """One launch that ncu profiled; `metrics` are in base units."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """The chosen metric of each counter, with notes on counters without one."""

    taken: Mapping[str, tuple[str, float]]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.taken.values()))


def find_ncu(named: str | None = None) -> str | None:
    """The path of the profiler: the named one, or one on PATH or in NVIDIA's default folders."""
    paths = (
        [named]
        if named
        else [shutil.which("ncu"), "/usr/local/cuda/bin/ncu", *_newest("/opt/nvidia/nsight-compute")]
    )
    return next((path for path in paths if path and Path(path).exists()), None)


def _newest(folder: str) -> list[str]:
    return [str(path) for path in sorted(Path(folder).glob("*/ncu"), reverse=True)]


def known_metrics(ncu: str) -> set[str] | None:
    """Base names of the metrics of this device; None if ncu does not list them."""
    try:
        done = subprocess.run(
            [ncu, "--query-metrics"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_query(done.stdout) or None


def parse_query(text: str) -> set[str]:
    return {found[1] for line in text.splitlines() if (found := re.match(r"\s*([a-z0-9]+__\w+)(\s|$)", line))}


def choose(known: set[str] | None, refused: Iterable[str] = ()) -> Choice:
    """The first available metric of each counter.

    `launch__*` metrics are in no list, but always available.
    """
    taken, notes, refused = {}, [], set(refused)
    for counter in COUNTERS:
        for name, factor in counter.metrics:
            base = name.partition(".")[0]
            if name not in refused and (known is None or base in known or base.startswith("launch__")):
                taken[counter.key] = (name, factor)
                break
        else:
            notes.append(
                f"{counter.key}: none of {', '.join(name for name, _ in counter.metrics)} exists here"
            )
    return Choice(taken, tuple(notes))


def refused_metrics(output: str) -> set[str]:
    """Metrics that ncu refused as unknown."""
    return set(re.findall(r"[Ff]ailed to find metric[s]?:?\s+'?([a-z0-9]+__[\w.]+)", output))


def command(ncu: str, metrics: Sequence[str], log: Path, program: Sequence[str]) -> list[str]:
    """The command that profiles the launches of `program` between cudaProfilerStart and cudaProfilerStop.

    Caches are flushed before each pass, as the timing protocol flushes L2. Clocks are not changed.
    """
    state = ("--clock-control", "none", "--cache-control", "all")
    which = ("--target-processes", "all", "--profile-from-start", "off")
    output = ("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log))
    return [ncu, *state, *which, *output, "--metrics", ",".join(metrics), *program]


def parse(text: str) -> list[Launch]:
    """Read the launches in ncu's CSV, in launch order.

    Both the raw page (a row for each launch, units in the second row) and the long form (a row for each
    metric) are read. Lines of ncu itself (==PROF==) are skipped.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    if not rows:
        return []
    header, rows = rows[0], rows[1:]
    if "Metric Name" in header:
        return _long(header, rows)
    units, found = {}, []
    for row in rows:
        record = dict(zip(header, row, strict=False))
        if not record.get("ID"):
            units = record
            continue
        metrics = {
            name: value
            for name in header
            if "__" in name and (value := _value(record.get(name, ""), units.get(name, ""))) is not None
        }
        found.append((int(record["ID"]), _launch(record, metrics)))
    return [launch for _, launch in sorted(found, key=lambda pair: pair[0])]


def _long(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Launch]:
    heads: dict[int, dict[str, str]] = {}
    metrics: dict[int, dict[str, float]] = {}
    for row in rows:
        record = dict(zip(header, row, strict=False))
        number = int(record["ID"])
        heads.setdefault(number, record)
        value = _value(record.get("Metric Value", ""), record.get("Metric Unit", ""))
        if value is not None:
            metrics.setdefault(number, {})[record["Metric Name"]] = value
    return [_launch(head, metrics.get(number, {})) for number, head in sorted(heads.items())]


def _launch(record: Mapping[str, str], metrics: Mapping[str, float]) -> Launch:
    return Launch(record["Kernel Name"], _triple(record["Grid Size"]), _triple(record["Block Size"]), metrics)


def _triple(text: str) -> tuple[int, int, int]:
    x, y, z = (int(number) for number in re.findall(r"\d+", text))
    return x, y, z


def _value(text: str, unit: str) -> float | None:
    try:
        return float(text.replace(",", "")) * _factor(unit)
    except ValueError:
        return None  # n/a, or a text


_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def _factor(unit: str) -> float:
    """The factor of a unit to base units: 1e6 for `Mbyte`, 1e9 for `cycle/nsecond`, 1 without a prefix."""
    top, _, bottom = unit.partition("/")
    return _scale(top) / _scale(bottom)


def _scale(unit: str) -> float:
    if unit in ("", "s"):
        return 1.0
    # ncu writes K for kilo, and nsecond as well as ns
    found = re.fullmatch(r"([numkKMGT]?)(second|s|byte|bit|hz|Hz)", unit)
    return _PREFIX["k" if found[1] == "K" else found[1]] if found else 1.0


def counters(launches: Sequence[Launch], choice: Choice) -> dict[str, float]:
    """The `counters` of a candidate from the launches of its kernels."""
    hows = {counter.key: counter.how for counter in COUNTERS}
    found: dict[str, float] = {}
    for key, (name, factor) in choice.taken.items():
        values = [launch.metrics[name] * factor for launch in launches if name in launch.metrics]
        if len(values) != len(launches) or not values:
            continue
        if hows[key] == "sum":
            found[key] = sum(values)
        elif hows[key] == "largest":
            found[key] = max(values)
        else:
            times = [launch.metrics.get("gpu__time_duration.sum", 1.0) for launch in launches]
            found[key] = sum(v * t for v, t in zip(values, times, strict=True)) / sum(times)
    return found
