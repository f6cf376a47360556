"""What calls of exported kernels cost, how long an export takes, and whether all of it holds on a GPU.

    python experiments/export/measure.py ROWS.jsonl --target h200 [--shape n=8192,k=8192] [--sizes 16,4096]

A plan of eight kernels of matmul over m = 1 .. 16384 (configs of a sample of the space, one of them with
scratch memory if the space has one) is exported for Python and torch; programs in C and Python use it.
Each part writes its rows as lines of JSON as soon as it is done. A part that fails writes a row with its
error, and the next one begins. Host times are those of calls until they return; the queue is emptied between
bursts, outside the clock.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilesight import kernels
from tilesight.builder.loaded_kernel import LoadedKernel
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.select.legality import is_legal
from tilesight.dispatch.table.table_file import DispatchTable, Segment, write_table
from tilesight.machine.devices import find_devices
from tilesight.machine.toolchain import software_versions
from tilesight.problem.assignments import parse_assignments
from tilesight.problem.space import Config
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.records.session import code_software
from tilesight.target.spec import Target, load_target

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.c")
BURST, BURSTS, STARTS = 50, 40, 9
MOST_M, KERNELS = 16384, 8
NAME = "product"
DTYPE = "bfloat16"


@dataclass(frozen=True)
class Setting:
    """What all parts use."""

    target: Target
    fixed: Mapping[str, int]
    sizes: tuple[int, ...]
    folder: Path  # for files of this run
    table: DispatchTable

    @property
    def made(self) -> Path:
        """The export for Python, with the interface for C."""
        return self.folder / "python"

    @property
    def environment(self) -> dict[str, str]:
        cache = str(self.folder / "cache")
        return {
            **os.environ,
            "TILESIGHT_CACHE_DIR": cache,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PRODUCT_FOLDER": str(self.made),
        }


class Rows:
    """Lines of JSON in a file, flushed one by one."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def add(self, what: str, **fields: Any) -> None:
        line = json.dumps({"what": what, **fields})
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        print(line, flush=True)

    def add_lines(self, text: str, **fields: Any) -> None:
        """Add what a program printed."""
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                found = {"what": "output", "text": line}
            self.add(found.pop("what", "error"), **found, **fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--shape", default="n=8192,k=8192", help="the fixed dimensions of matmul")
    parser.add_argument("--sizes", default="16,256,4096", help="of m")
    parser.add_argument("--parts", default="", help="names of parts with commas; all without it")
    given = parser.parse_args()
    fixed = {name: int(value) for name, value in parse_assignments(given.shape, "shape").items()}
    sizes = tuple(int(size) for size in given.sizes.split(","))
    rows, target = Rows(given.out), load_target(given.target)
    wanted = [name for name in given.parts.split(",") if name] or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        setting = Setting(target, fixed, sizes, Path(folder), plan(target, fixed))
        os.environ["TILESIGHT_CACHE_DIR"] = setting.environment["TILESIGHT_CACHE_DIR"]
        write_table(setting.table, setting.folder / f"{NAME}.json")
        machine(setting, rows)
        for name, part in PARTS.items():
            if name in wanted or name == "exports":  # the others use them
                try:
                    part(setting, rows)
                except BaseException as error:
                    text = "".join(traceback.format_exception(error))[-3000:]
                    rows.add("failed", part=name, error=f"{type(error).__name__}: {error}", traceback=text)
                    if isinstance(error, KeyboardInterrupt):
                        raise
    rows.add("end")


def plan(target: Target, fixed: Mapping[str, int]) -> DispatchTable:
    """Eight kernels over m, each for a range that is twice as long as the one before it."""
    template = kernels.template_for("matmul", target, DTYPE)
    attrs = template.operator.kept_attributes({})
    ends = [MOST_M >> (KERNELS - 1 - i) for i in range(KERNELS)]
    firsts = [1, *(end + 1 for end in ends[:-1])]
    chosen: list[Config] = []
    for first, last in zip(firsts, ends, strict=True):
        spaces = [
            template.space(Workload("matmul", {"m": m, **fixed}, DTYPE, attrs), target) for m in (first, last)
        ]
        wants_scratch = not any(_has_scratch(template, config, fixed) for config in chosen)
        found = [
            config
            for config in spaces[1].sample(400, seed=first)
            if config not in chosen and all(is_legal(config, ("m",), space) for space in spaces)
        ]
        found.sort(key=lambda config: wants_scratch and not _has_scratch(template, config, fixed))
        chosen.append(found[0])
    segments = tuple(Segment(a, b, i) for i, (a, b) in enumerate(zip(firsts, ends, strict=True)))
    software = code_software(software_versions(target))
    return DispatchTable(
        *("matmul", DTYPE, attrs, ("m", "n", "k"), fixed, "m", ("m",), template.name, template.version),
        *(target.name, target.fingerprint, target.arch, "", "", software, "none", tuple(chosen), segments),
    )


def _has_scratch(template: KernelTemplate, config: Config, fixed: Mapping[str, int]) -> bool:
    return bool(template.scratch(Workload("matmul", {"m": 64, **fixed}, DTYPE, {}), config))


def machine(setting: Setting, rows: Rows) -> None:
    rows.add(
        "machine",
        target=setting.target.name,
        devices=[f"{device.name}, driver {device.driver}" for device in find_devices()],
        cores=os.cpu_count(),
        load=os.getloadavg(),
        torch=torch.__version__,
        python=sys.version.split()[0],
        software=software_versions(setting.target),
        date=time.strftime("%Y-%m-%d"),
        fixed=dict(setting.fixed),
        kernels=[dict(config) for config in setting.table.kernels],
    )


def exports(setting: Setting, rows: Rows) -> None:
    """The command, with no kernel built; with all of them built, by format."""
    for format, cached in (("python", False), ("python", True), ("c", True), ("torch", True)):
        out = setting.folder / (format if format != "python" or not cached else "again")
        words = [str(setting.folder / f"{NAME}.json"), "--out", str(out), "--format", format]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tilesight.cli.main", "export", *words],
            env=setting.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.exists() else 0
        rows.add("export", format=format, cached=cached, seconds=round(seconds, 2), bytes=size)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])


def program(setting: Setting) -> Path:
    """The program in C, compiled once."""
    path = setting.folder / "program"
    if not path.exists():
        defines = [f"-DN={setting.fixed['n']}", f"-DK={setting.fixed['k']}"]
        if "workspace_bytes" in (setting.made / f"{NAME}.h").read_text(encoding="utf-8"):
            defines.append("-DHAS_WORKSPACE")
        link = [f"-I{setting.made}", f"-L{setting.made}", f"-l{NAME}", f"-Wl,-rpath,{setting.made}", "-ldl"]
        run(
            ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", str(PROGRAM), *defines, *link, "-o", str(path)],
            setting,
        )
    return path


def run(words: list[str], setting: Setting) -> str:
    done = subprocess.run(
        words, env=setting.environment, capture_output=True, text=True, check=False, timeout=500
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def c_results(setting: Setting, rows: Rows) -> None:
    """Products of the program in C, called and in a graph, on each device, at both ends of each segment."""
    ends = [m for s in setting.table.segments for m in (s.first, s.last) if m <= 4096]
    for device in range(min(2, torch.cuda.device_count())):
        words = [str(program(setting)), "check", str(device), *map(str, ends)]
        rows.add_lines(run(words, setting))


def c_select(setting: Setting, rows: Rows) -> None:
    rows.add_lines(run([str(program(setting)), "select", "0", str(MOST_M)], setting))


def c_calls(setting: Setting, rows: Rows) -> None:
    words = [str(program(setting)), "time", "0", *map(str, setting.sizes)]
    rows.add_lines(run(words, setting))


def c_first_call(setting: Setting, rows: Rows) -> None:
    for number in range(STARTS):
        begin = time.perf_counter()
        found = run([str(program(setting)), "first", "0", "16"], setting)
        rows.add_lines(found, number=number, process_ms=round((time.perf_counter() - begin) * 1e3, 1))


FIRST_IN_PYTHON = """
import json, sys, time
begin = time.perf_counter()
import torch
imported = time.perf_counter()
a = torch.ones(16, int(sys.argv[2]), dtype=torch.bfloat16, device="cuda")
b = torch.ones(int(sys.argv[2]), int(sys.argv[1]), dtype=torch.bfloat16, device="cuda")
torch.cuda.synchronize()
ready = time.perf_counter()
import product
loaded = time.perf_counter()
c = product.call(a, b)
torch.cuda.synchronize()
done = time.perf_counter()
assert bool((c == float(sys.argv[2])).all())
ms = lambda first, last: round((last - first) * 1e3, 2)
print(json.dumps({"what": "Python: first call", "import_torch_ms": ms(begin, imported),
                  "tensors_ms": ms(imported, ready), "import_ms": ms(ready, loaded),
                  "call_ms": ms(loaded, done), "import_and_call_ms": ms(ready, done)}))
"""


def python_first_call(setting: Setting, rows: Rows) -> None:
    for number in range(STARTS):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_IN_PYTHON, *(str(setting.fixed[dim]) for dim in "nk")],
            cwd=setting.made,
            env={**os.environ, "PYTHONPATH": str(setting.made)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        rows.add_lines(done.stdout, number=number)


def module(setting: Setting) -> Any:
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, setting.made / f"{NAME}.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = found
        spec.loader.exec_module(found)
    return sys.modules[NAME]


def inputs(setting: Setting, m: int, device: str = "cuda") -> list[torch.Tensor]:
    workload = Workload("matmul", {"m": m, **setting.fixed}, DTYPE, setting.table.attrs)
    return list(kernels.operator("matmul").inputs(workload, device, 1).values())


def python_results(setting: Setting, rows: Rows) -> None:
    """Errors beside the reference, and whether our own dispatcher gives the same bits."""
    product = module(setting)
    with dispatcher("matmul", setting.target, table=setting.table, dynamic="m", misses=False,
                    database=f"{setting.folder}/performance.db", **setting.fixed) as own:  # fmt: skip
        for m in [m for s in setting.table.segments for m in (s.first, s.last) if m <= 4096]:
            a, b = inputs(setting, m)
            found, wanted = product.call(a, b), a.float() @ b.float()
            error = float((found.float() - wanted).norm() / wanted.norm())
            same = bool(torch.equal(found, own(a, b)))
            rows.add("Python: result", m=m, kernel=product.select(m), relative_error=error, same_as_own=same)


def python_graph(setting: Setting, rows: Rows) -> None:
    product = module(setting)
    product.init(0)
    for m in setting.sizes:
        a, b = inputs(setting, m)
        out = torch.empty(m, setting.fixed["n"], dtype=a.dtype, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            product.call(a, b, out=out)
        a.mul_(2)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        rows.add("Python: graph", m=m, right=bool(torch.equal(out, product.call(a, b))))


def python_devices(setting: Setting, rows: Rows) -> None:
    """The same call on two devices, in turns, from a thread of each."""
    if torch.cuda.device_count() < 2:
        rows.add("skipped", part="python_devices", reason="one device")
        return
    product = module(setting)
    for m in setting.sizes:
        of_device = [inputs(setting, m, f"cuda:{device}") for device in range(2)]
        found = [product.call(a, b) for a, b in of_device for _ in range(2)]
        right = [
            bool((c.float() - a.float() @ b.float()).norm() <= 5e-3 * (a.float() @ b.float()).norm())
            for c, (a, b) in zip(found, [of_device[0]] * 2 + [of_device[1]] * 2, strict=True)
        ]
        rows.add("Python: two devices", m=m, right=right, devices=[str(c.device) for c in found])


def python_calls(setting: Setting, rows: Rows) -> None:
    """Host times, in turns: the bare launch, our own dispatcher, the module, the operator of torch."""
    product, operator = module(setting), operator_of_torch(setting, rows)
    with dispatcher("matmul", setting.target, table=setting.table, dynamic="m", misses=False,
                    database=f"{setting.folder}/performance.db", **setting.fixed) as own:  # fmt: skip
        for m in setting.sizes:
            a, b = inputs(setting, m)
            out = product.call(a, b)
            own(a, b)
            acts: dict[str, Callable[[], object]] = {
                "bare launch": bare_launch(setting, product.select(m), m, [a, b, out]),
                "own dispatcher": lambda a=a, b=b: own(a, b),
                "own dispatcher, out given": lambda a=a, b=b, out=out: own(a, b, out=out),
                "exported call": lambda a=a, b=b: product.call(a, b),
                "exported call, out given": lambda a=a, b=b, out=out: product.call(a, b, out=out),
                "exported bound call": product.bind(a, b, out=out),
            }
            if operator is not None:
                acts["exported operator"] = lambda a=a, b=b: operator(a, b)
            acts["torch.mm"] = lambda a=a, b=b: torch.mm(a, b)
            for what, times in in_turns(acts).items():
                rows.add(f"Python: {what}", m=m, **percentiles(times))


def bare_launch(setting: Setting, kernel: int, m: int, tensors: list[torch.Tensor]) -> Callable[[], None]:
    """The library's own function, bound once."""
    copied = setting.folder / f"bare_{kernel}_{m}.so"  # a library serves one loader
    shutil.copy(setting.made / "kernels" / f"{NAME}_{kernel}.so", copied)
    loaded = LoadedKernel(str(copied), "tilesight_call")
    stream = torch.cuda.current_stream().cuda_stream
    return loaded.bind([*tensors, *scratch_memory(setting, kernel, m)], stream, [m])


def scratch_memory(setting: Setting, kernel: int, m: int) -> list[torch.Tensor]:
    template = kernels.template_for("matmul", setting.target, DTYPE)
    workload = Workload("matmul", {"m": m, **setting.fixed}, DTYPE, setting.table.attrs)
    scratch = template.scratch(workload, setting.table.kernels[kernel])
    return [
        torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for shape, dtype in scratch.values()
    ]


def in_turns(acts: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    clock, found = time.perf_counter_ns, {name: list[float]() for name in acts}
    for act in acts.values():
        for _ in range(BURST):
            act()
    cost = statistics.median(-(clock() - clock()) for _ in range(2000))
    for _ in range(BURSTS):
        for name, act in acts.items():
            torch.cuda.synchronize()
            times = found[name]
            for _ in range(BURST):
                begin = clock()
                act()
                times.append((clock() - begin - cost) / 1e3)
    return found


def percentiles(times: list[float]) -> dict[str, float | int]:
    ordered = sorted(times)
    found = {
        f"p{p}_us": round(ordered[min(len(ordered) - 1, math.floor(len(ordered) * p / 100))], 3)
        for p in (50, 90, 99)
    }
    return {**found, "n": len(ordered)}


_operator: list[Any] = []


def operator_of_torch(setting: Setting, rows: Rows) -> Any:
    """The operator of torch, compiled and loaded once; None if that failed, which is a row."""
    if not _operator:
        try:
            _operator.append(_load_operator(setting, rows))
        except Exception as error:
            rows.add("failed", part="operator_of_torch", error=str(error)[-2000:])
            _operator.append(None)
    return _operator[0]


def _load_operator(setting: Setting, rows: Rows) -> Any:
    root, source = Path(torch.__file__).parent, setting.folder / "torch"
    library = setting.folder / f"lib{NAME}_torch.so"
    # linked with the library of the Python module, so that both use the same loaded kernels
    own = [f"-I{source}", f"-L{setting.made}", f"-l{NAME}", f"-Wl,-rpath,{setting.made}"]
    headers = [f"-isystem{root}/include", f"-isystem{root}/include/torch/csrc/api/include"]
    linked = [f"-L{root}/lib", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib", "-ldl"]
    begin = time.perf_counter()
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared"]
    run(
        ["g++", *flags, *headers, str(source / f"{NAME}_torch.cpp"), *own, *linked, "-o", str(library)],
        setting,
    )
    rows.add("torch: compiled", seconds=round(time.perf_counter() - begin, 2))
    torch.ops.load_library(str(library))
    return torch.ops.tilesight.product.default


def torch_results(setting: Setting, rows: Rows) -> None:
    """The operator alone, under torch.compile with dynamic sizes, and in a graph."""
    operator, product = operator_of_torch(setting, rows), module(setting)
    if operator is None:
        return
    compiled = torch.compile(lambda a, b: operator(a, b) + 1, fullgraph=True, dynamic=True)
    for m in setting.sizes:
        a, b = inputs(setting, m)
        wanted = product.call(a, b)
        rows.add("torch: result", m=m, same=bool(torch.equal(operator(a, b), wanted)),
                 compiled=bool(torch.equal(compiled(a, b), wanted + 1)))  # fmt: skip
    a, b = inputs(setting, setting.sizes[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = operator(a, b)
    a.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    rows.add("torch: graph", right=bool(torch.equal(out, operator(a, b))))


def aot_inductor(setting: Setting, rows: Rows) -> None:
    """A layer with the operator, compiled ahead of time, and loaded."""
    operator, product = operator_of_torch(setting, rows), module(setting)
    if operator is None:
        return

    class Layer(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return operator(a, b) + 1

    a, b = inputs(setting, 64)
    m = torch.export.Dim("m", min=2, max=MOST_M)
    exported = torch.export.export(Layer(), (a, b), dynamic_shapes={"a": {0: m}, "b": None})
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(setting.folder / "layer.pt2"))
    layer = torch._inductor.aoti_load_package(path)
    for size in setting.sizes:
        a, b = inputs(setting, size)
        rows.add("AOTInductor", m=size, right=bool(torch.equal(layer(a, b), product.call(a, b) + 1)))


def sanitizer(setting: Setting, rows: Rows) -> None:
    """The program in C under compute-sanitizer, with small products."""
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if found is None:
        rows.add("skipped", part="sanitizer", reason="compute-sanitizer is not installed")
        return
    firsts = [str(segment.first) for segment in setting.table.segments if segment.first <= 1025]
    for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
        words = [
            found,
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            str(program(setting)),
            "check",
            "0",
            *firsts,
        ]
        begin = time.perf_counter()
        try:
            done = subprocess.run(
                words, env=setting.environment, capture_output=True, text=True, check=False, timeout=400
            )
        except subprocess.TimeoutExpired:
            rows.add("compute-sanitizer", tool=tool, exit_code=None, summary="took longer than 400 s")
            continue
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("=========")]
        seconds = round(time.perf_counter() - begin, 1)
        rows.add("compute-sanitizer", tool=tool, exit_code=done.returncode, seconds=seconds,
                 summary=lines[-1] if lines else "", first=lines[1:7])  # fmt: skip


Part = Callable[[Setting, Rows], None]
PARTS: Mapping[str, Part] = {
    "exports": exports,
    "c_results": c_results,
    "c_select": c_select,
    "c_calls": c_calls,
    "c_first_call": c_first_call,
    "python_first_call": python_first_call,
    "python_results": python_results,
    "python_graph": python_graph,
    "python_devices": python_devices,
    "python_calls": python_calls,
    "torch_results": torch_results,
    "aot_inductor": aot_inductor,
    "sanitizer": sanitizer,
}


if __name__ == "__main__":
    main()
