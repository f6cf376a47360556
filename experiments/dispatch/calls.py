"""The cost of a call through a dispatcher, and of TileLang's own call of the same kernel; and torch.compile.

    python experiments/dispatch/calls.py OUT.csv --target cpu            # a processor
    python experiments/dispatch/calls.py OUT.csv --target h200           # a GPU: matmul n=8192 k=8192
    python experiments/dispatch/calls.py OUT.csv --target h200 --shape n=256,k=256 --sizes 16,64

Times are those of the host: from a call until it returns. On a GPU the queue is emptied between bursts,
outside the clock. TileLang compiles the same PrimFunc with its own defaults. On a processor this is
unoptimised code, so the kernel there does almost nothing (16 numbers), and only the call is compared.
Columns: what, size, number, host_us.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tilelang
import torch
from tvm.target import Target as TvmTarget

from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.kernels import loaded
from tilesight.dispatch.make import dispatcher
from tilesight.errors import InputError
from tilesight.machine.devices import cpu_name
from tilesight.problem.assignments import parse_assignments
from tilesight.problem.axes import Axes
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Config, Parameter, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.target.spec import Target, load_target

BURST, BURSTS = 50, 40


class Tripling(Operator):
    """y[n] = 3 x[n]"""

    name = "tripling"
    dims = ("n",)
    dtypes = ("float32",)
    axes: ClassVar[Axes] = {"x": ("n",), "y": ("n",)}
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"T": {"n": 16}}
    default_names = ("T",)

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(workload.dims["n"], device=device)}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["n"],)}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        return {"y": inputs["x"] * 3}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        return {}

    def flops(self, workload: Workload) -> int:
        return workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 8 * workload.dims["n"]

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-6


class TriplingCpu(KernelTemplate):
    operator = Tripling()
    name = "tripling"
    target_kinds = ("cpu",)
    dtypes = ("float32",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        return SearchSpace([Parameter("block", (16,))])

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return Config({"block": 16})

    def build(self, workload: Workload, config: Config) -> Any:
        import tilelang.language as T  # noqa: N812

        n, block = workload.dims["n"], config.int("block")

        @T.prim_func
        def tripling(x: T.Tensor((n,), "float32"), y: T.Tensor((n,), "float32")):  # type: ignore[no-untyped-def, valid-type]
            with T.Kernel(T.ceildiv(n, block)) as b:
                for i in T.serial(block):
                    y[b * block + i] = x[b * block + i] * 3

        return tripling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--shape", default="n=8192,k=8192", help="of matmul: the fixed dimensions")
    parser.add_argument("--sizes", default="16,256,4096", help="of m")
    parser.add_argument("--database")
    parser.add_argument("--inductor", action="store_true", help="compile with inductor on a processor, too")
    given = parser.parse_args()
    target = load_target(given.target)
    rows: list[tuple[str, int, int, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        database = given.database or f"{folder}/performance.db"
        if target.is_gpu:
            fixed = {name: int(value) for name, value in parse_assignments(given.shape, "shape").items()}
            made = dispatcher("matmul", target, database=database, misses=True, **fixed)
            sizes = [int(size) for size in given.sizes.split(",")]
        else:
            made, sizes = (
                dispatcher("tripling", target, template=TriplingCpu(), database=database, misses=True),
                [16],
            )
        with made:
            for size in sizes:
                rows += _calls(made, size)
            if target.is_gpu:
                _graph(made, sizes)
            _compiled(made, sizes, "inductor" if target.is_gpu or given.inductor else "aot_eager")
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "size", "number", "host_us"])
        writer.writerows(rows)
    where = torch.cuda.get_device_name() if target.is_gpu else cpu_name()
    print(f"{where}, torch {torch.__version__}, tilelang {tilelang.__version__}, {time.strftime('%Y-%m-%d')}")
    for size in sizes:
        for what in dict.fromkeys(row[0] for row in rows):
            times = sorted(row[3] for row in rows if row[:2] == (what, size))
            print(
                f"  {size:6d}  {what:42s} p50 {times[len(times) // 2]:8.3f} us  "
                f"p99 {times[int(len(times) * 0.99)]:8.3f} us"
            )


def _calls(made: Dispatcher, size: int) -> list[tuple[str, int, int, float]]:
    inputs = _inputs(made, size)
    found = made(*inputs)
    chosen = made.choose(**{made.problem.free[0]: size})
    print(f"{made.problem.free[0]}={size}: {chosen.source}: {chosen.config}")
    function = made.problem.template.build(chosen.workload, chosen.config)
    target = made.problem.target
    flags = [*made.problem.template.compile_flags.get(target.kind, ())]
    name: Any = TvmTarget(target.tvm_target()) if target.is_gpu else "c"
    options: dict[str, Any] = {"compile_flags": flags} if flags else {}
    own = tilelang.compile(function, target=name, out_idx=[-1], **options)
    into = tilelang.compile(function, target=name, **options)
    assert torch.equal(own(*inputs), found), "the two kernels differ"
    out = torch.empty_like(found)
    kernel = next(reversed(loaded._kernels.values()))
    bare = kernel.bind([*inputs, out], torch.cuda.current_stream().cuda_stream if target.is_gpu else 0)
    acts: dict[str, Callable[[], object]] = {
        "bare launch of the library": bare,
        f"TileLang ({own.execution_backend})": lambda: own(*inputs),
        "dispatcher": lambda: made(*inputs),
        f"TileLang ({own.execution_backend}), out given": lambda: into(*inputs, out),
        "dispatcher, out given": lambda: made(*inputs, out=out),
        "dispatcher as torch operator": lambda: made.op(*inputs),
    }
    if made.problem.operator.name == "matmul":
        acts["torch.mm"] = lambda: torch.mm(*inputs)
    return [
        (what, size, i, us)
        for what, times in _in_turns(acts, target.is_gpu).items()
        for i, us in enumerate(times)
    ]


def _in_turns(acts: Mapping[str, Callable[[], object]], is_gpu: bool) -> dict[str, list[float]]:
    clock, found = time.perf_counter_ns, {name: list[float]() for name in acts}
    for act in acts.values():
        for _ in range(BURST):
            act()
    costs = sorted(-(clock() - clock()) for _ in range(2000))
    cost = costs[1000]
    for _ in range(BURSTS):
        for name, act in acts.items():
            if is_gpu:
                torch.cuda.synchronize()
            times = found[name]
            for _ in range(BURST):
                begin = clock()
                act()
                times.append((clock() - begin - cost) / 1e3)
    return found


def _inputs(made: Dispatcher, size: int) -> list[torch.Tensor]:
    workload = made.problem.workload((size,))
    return list(made.problem.operator.inputs(workload, made.problem.torch_device, 1).values())


def _graph(made: Dispatcher, sizes: list[int]) -> None:
    """Captured into a CUDA graph, replayed on other inputs; and refused where nothing is built."""
    for size in sizes:
        inputs = _inputs(made, size)
        made(*inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = made(*inputs)
        for tensor in inputs:
            tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, made(*inputs)), "the graph computes something else"
    met = "was served by a kernel that is loaded"
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")  # a graph of something
        try:
            made(*_fresh(made, max(sizes) + 1))
        except InputError as error:
            met = f"was refused: {error}"
    print(f"CUDA graph: captured and replayed; within a capture, a shape that was not met {met}")


def _fresh(made: Dispatcher, size: int) -> list[torch.Tensor]:
    dims = {**made.problem.fixed, made.problem.free[0]: size}
    dtype = getattr(torch, made.problem.dtype)
    return [
        torch.empty(dims["m"], dims["k"], dtype=dtype, device="cuda"),
        torch.empty(dims["k"], dims["n"], dtype=dtype, device="cuda"),
    ]


def _compiled(made: Dispatcher, sizes: list[int], backend: str) -> None:
    """In one graph for all sizes, and as CUDA graphs of torch's own where there is a GPU."""
    counted: list[str] = []

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        return made(*inputs).relu() + 1  # type: ignore[no-any-return]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for size in [*sizes, *(s + 8 for s in sizes if made.problem.target.is_gpu)]:
        inputs = _inputs(made, size)
        torch._dynamo.mark_dynamic(inputs[0], 0)
        assert torch.equal(compiled(*inputs), function(*inputs)), "compiled, it computes something else"
    counted.append(f"{torch._dynamo.utils.counters['stats']['unique_graphs']} graph")
    if made.problem.target.is_gpu:
        replayed = torch.compile(function, fullgraph=True, mode="reduce-overhead")
        inputs = _inputs(made, sizes[0])
        for _ in range(4):
            assert torch.equal(replayed(*inputs), function(*inputs)), "replayed, it computes something else"
        counted.append("reduce-overhead")
    print(f"torch.compile(fullgraph=True, dynamic=True) with {backend}: {', '.join(counted)}, no break")


if __name__ == "__main__":
    main()
