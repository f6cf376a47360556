"""Nsight Compute: which counters are asked for, how its output is read, and what they are called in a dataset.

Knows no kernel and no dataset: text in, plain dictionaries out.
"""

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
    """One value of a dataset's `counters`: the metrics that may give it, best first, each with the factor that makes
    the value of what ncu says in base units (seconds, bytes, Hz, percent). Over the kernels of one candidate, counts
    are summed, shares and clocks averaged over their time."""

    key: str
    metrics: tuple[tuple[str, float], ...]
    how: str = "mean"  # sum | mean | largest


def _counter(key: str, how: str, factor: float, *names: str) -> Counter:
    return Counter(key, tuple((name, factor) for name in names), how)


_ELAPSED = "avg.pct_of_peak_sustained_elapsed"
COUNTERS = (
    _counter("duration_us", "sum", MICROSECONDS, "gpu__time_duration.sum"),
    _counter("sm_clock_mhz", "mean", MHZ, "sm__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second"),
    # wgmma runs on the pipe that these count, as mma.sync does
    _counter("tensor_active", "mean", SHARE, f"sm__pipe_tensor_cycles_active.{_ELAPSED}",
             f"sm__pipe_tensor_op_hmma_cycles_active.{_ELAPSED}", f"sm__inst_executed_pipe_tensor_op_hmma.{_ELAPSED}"),
    _counter("dram_read_bytes", "sum", COUNT, "dram__bytes_read.sum"),
    _counter("dram_write_bytes", "sum", COUNT, "dram__bytes_write.sum"),
    _counter("dram_throughput", "mean", SHARE, "dram__bytes.sum.pct_of_peak_sustained_elapsed", f"dram__throughput.{_ELAPSED}"),
    # requests of the cores alone; lts__t_bytes has the traffic between the two halves of L2 in it too
    Counter("l2_bytes", (("lts__t_sectors_srcunit_tex.sum", SECTORS), ("lts__t_bytes.sum", COUNT)), "sum"),
    Counter("l2_all_bytes", (("lts__t_bytes.sum", COUNT), ("lts__t_sectors.sum", SECTORS)), "sum"),
    _counter("l2_hit", "mean", SHARE, "lts__t_sector_hit_rate.pct"),
    Counter("l2_core_hit_bytes", (("lts__t_sectors_srcunit_tex_lookup_hit.sum", SECTORS),), "sum"),
    Counter("l2_core_miss_bytes", (("lts__t_sectors_srcunit_tex_lookup_miss.sum", SECTORS),), "sum"),
    _counter("l2_throughput", "mean", SHARE, f"lts__t_sectors.{_ELAPSED}", f"lts__throughput.{_ELAPSED}"),
    _counter("xbar_read_bytes", "sum", COUNT, "l1tex__m_xbar2l1tex_read_bytes.sum"),  # what reaches the cores
    _counter("xbar_write_bytes", "sum", COUNT, "l1tex__m_l1tex2xbar_write_bytes.sum"),
    _counter("shared_wavefronts", "sum", COUNT, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    _counter("shared_load_conflicts", "sum", COUNT, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"),
    _counter("shared_store_conflicts", "sum", COUNT, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"),
    _counter("shared_utilization", "mean", SHARE, f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_ELAPSED}",
             f"l1tex__data_pipe_lsu_wavefronts.{_ELAPSED}"),
    # banks of L1 and shared memory, whoever asks: operands of wgmma and bulk copies too
    _counter("bank_reads", "mean", SHARE, f"l1tex__data_bank_reads.{_ELAPSED}"),
    _counter("bank_writes", "mean", SHARE, f"l1tex__data_bank_writes.{_ELAPSED}"),
    _counter("special_instructions", "sum", COUNT, "smsp__inst_executed_pipe_xu.sum", "sm__inst_executed_pipe_xu.sum"),
    _counter("fma_instructions", "sum", COUNT, "smsp__inst_executed_pipe_fma.sum", "sm__inst_executed_pipe_fma.sum"),
    _counter("alu_instructions", "sum", COUNT, "smsp__inst_executed_pipe_alu.sum", "sm__inst_executed_pipe_alu.sum"),
    _counter("lsu_instructions", "sum", COUNT, "smsp__inst_executed_pipe_lsu.sum", "sm__inst_executed_pipe_lsu.sum"),
    _counter("instructions", "sum", COUNT, "smsp__inst_executed.sum", "sm__inst_executed.sum"),
    _counter("issue_active", "mean", SHARE, f"smsp__issue_active.{_ELAPSED}", f"sm__inst_issued.{_ELAPSED}"),
    Counter("local_load_bytes", (("l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", COUNT),
                                 ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", SECTORS)), "sum"),
    Counter("local_store_bytes", (("l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", COUNT),
                                  ("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum", SECTORS)), "sum"),
    _counter("occupancy", "mean", SHARE, "sm__warps_active.avg.pct_of_peak_sustained_active"),
    _counter("registers", "largest", COUNT, "launch__registers_per_thread"),
)  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One kernel that ncu saw: in `metrics` each value in base units."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """For each counter the metric taken, and what was left out."""

    taken: Mapping[str, tuple[str, float]]
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.taken.values()))


def find_ncu(named: str | None = None) -> str | None:
    """The profiler: as named, on PATH, or where NVIDIA's packages put it."""
    places = [named] if named else [shutil.which("ncu"), "/usr/local/cuda/bin/ncu", *_newest("/opt/nvidia/nsight-compute")]
    return next((place for place in places if place and Path(place).exists()), None)


def _newest(folder: str) -> list[str]:
    return [str(path) for path in sorted(Path(folder).glob("*/ncu"), reverse=True)]


def known_metrics(ncu: str) -> set[str] | None:
    """Base names of the metrics that this device has, or None where ncu can't say."""
    try:
        done = subprocess.run(
            [ncu, "--query-metrics"], capture_output=True, text=True, errors="replace", timeout=_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_query(done.stdout) or None


def parse_query(text: str) -> set[str]:
    return {found[1] for line in text.splitlines() if (found := re.match(r"\s*([a-z0-9]+__\w+)(\s|$)", line))}


def choose(known: set[str] | None, refused: Iterable[str] = ()) -> Choice:
    """The first metric of each counter that exists here. `launch__*` are facts of the launch, in no list of counters."""
    taken, notes, refused = {}, [], set(refused)
    for counter in COUNTERS:
        for name, factor in counter.metrics:
            base = name.partition(".")[0]
            if name not in refused and (known is None or base in known or base.startswith("launch__")):
                taken[counter.key] = (name, factor)
                break
        else:
            notes.append(f"{counter.key}: none of {', '.join(name for name, _ in counter.metrics)} exists here")
    return Choice(taken, tuple(notes))


def refused_metrics(output: str) -> set[str]:
    """Metrics that ncu named as unknown before it gave up."""
    return set(re.findall(r"[Ff]ailed to find metric[s]?:?\s+'?([a-z0-9]+__[\w.]+)", output))


def command(ncu: str, metrics: Sequence[str], log: Path, program: Sequence[str]) -> list[str]:
    """Counters of what `program` launches between cudaProfilerStart and cudaProfilerStop. Caches are flushed before each
    pass, as the timing protocol flushes L2; the clocks are left as they are."""
    state = ("--clock-control", "none", "--cache-control", "all")
    which = ("--target-processes", "all", "--profile-from-start", "off")
    output = ("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log))
    return [ncu, *state, *which, *output, "--metrics", ",".join(metrics), *program]


def parse(text: str) -> list[Launch]:
    """The launches in ncu's CSV, in the order of its IDs, which is that of the launches. Reads the raw page (a row a
    launch, units in the second row) and the long form (a row a metric). Lines of its own (==PROF==) are skipped."""
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
            name: value for name in header if "__" in name and (value := _value(record.get(name, ""), units.get(name, ""))) is not None
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
    """What one `unit` is in base units: `Mbyte` is 1e6, `cycle/nsecond` is 1e9, what has no prefix 1."""
    top, _, bottom = unit.partition("/")
    return _scale(top) / _scale(bottom)


def _scale(unit: str) -> float:
    if unit in ("", "s"):
        return 1.0
    # ncu writes K for kilo, and nsecond as well as ns
    found = re.fullmatch(r"([numkKMGT]?)(second|s|byte|bit|hz|Hz)", unit)
    return _PREFIX["k" if found[1] == "K" else found[1]] if found else 1.0


def counters(launches: Sequence[Launch], choice: Choice) -> dict[str, float]:
    """The values of a dataset's `counters` for one candidate, whose kernels these launches are."""
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
