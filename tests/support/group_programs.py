"""Programs of several processes in one process group, on a processor, and what each rank says.

`python -m tests.support.group_programs NAME FOLDER RANK WORLD` runs one rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tilesight
from tests.support.group_faults import gpu_faults, refusal, refused_memory, refused_values
from tests.support.group_kernels import SumTemplate, config, cpu_pair
from tests.support.preloaded import PreloadedParent
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.group.group_dispatcher import GroupDispatcher
from tilesight.dispatch.group.members import Watch
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.table.dispatch_table import DispatchTable, Segment
from tilesight.dispatch.table.table_file import write_table
from tilesight.errors import TileSightError
from tilesight.problem.space import Config
from tilesight.records.session import Comparison, Decision
from tilesight.records.trial import BuildResult, Measurement, Status, TrialRecord
from tilesight.tuner.comparisons import record_comparison
from tilesight.tuner.resolve import find_context

MODULE = "tests.support.group_programs"
LIMIT_S = 300.0
N = 512
__all__ = ["gpu_faults"]  # a program of another module


def start(name: str, folder: Path, world: int = 2) -> list[Popen[str]]:
    """Start a program in `world` processes."""
    _prepare(folder)
    return [
        PreloadedParent(
            [sys.executable, "-m", MODULE, name, str(folder), str(rank), str(world)],
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env=_environment(folder),
        )
        for rank in range(world)
    ]


def start_torchrun(name: str, folder: Path, world: int = 2) -> Popen[str]:
    """Start a program under `torchrun`."""
    _prepare(folder)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command = [sys.executable, "-m", *torchrun, "--module", MODULE, name, str(folder)]
    return Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=_environment(folder))


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cpu_pair(folder)


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TILESIGHT_KERNELS": "tests.support.group_kernels",
        "TILESIGHT_DB": f"sqlite:///{folder}/performance.db",
        "TILESIGHT_CACHE_DIR": str(folder.parent / "cache"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def results(processes: Sequence[Popen[str]]) -> list[Any]:
    """What each rank says at the end."""
    ended = [process.communicate(timeout=LIMIT_S) for process in processes]
    for process, (_, error) in zip(processes, ended, strict=True):
        assert process.returncode == 0, error
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


def make(folder: Path, **changes: Any) -> GroupDispatcher:
    given: Mapping[str, Any] = {"template": SumTemplate(), "workers": 1, **changes}
    made: Dispatcher = dispatcher("sum_of_ranks", str(folder / "cpux2.toml"), group=dist.group.WORLD, **given)
    assert isinstance(made, GroupDispatcher)
    return made


def vectors(count: int, n: int = N) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The vectors of all ranks, and their sum."""
    torch.manual_seed(count)
    found = [torch.randn(n) for _ in range(dist.get_world_size())]
    return found, torch.stack(found).sum(0)


def with_version(version: str, work: Callable[[], Any]) -> Any:
    """`work` in another version of TileSight."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilesight.dispatch.make.__version__", version)
        return work()


def calls(rank: int, folder: Path) -> Any:
    """Right calls of each algorithm, and refused steps."""
    said: dict[str, Any] = {}
    for way in ("pull", "push", "library"):
        with make(folder, config=config(way, "cpu")) as made:
            said[way] = right_calls(made, rank, (N, N, 2 * N, N) if way == "pull" else (N,) * 4)
    with make(folder, config=config("pull", "cpu")) as made:
        said["choices"] = [str(choice.config) for choice in made.prepare(n=[64, N])]
        said["explained"] = made.explain().splitlines()[-1]
        said["refused"] = refused_calls(made, rank)
        own, total = vectors(30)
        said["goes on"] = torch.allclose(made(own[rank]), total)
    return {**said, "tabled": tabled(rank, folder)}


def one_call(rank: int, folder: Path) -> Any:
    with make(folder, config=config("pull", "cpu")) as made:
        own, total = vectors(1)
        return torch.allclose(made(own[rank]), total)


def right_calls(made: GroupDispatcher, rank: int, sizes: Sequence[int]) -> list[bool]:
    """With ordinary tensors, with a part of a shared one, and with another part."""
    right = []
    for count, n in enumerate(sizes):
        own, total = vectors(count, n)
        right.append(torch.allclose(made(own[rank]), total))
    x = made.empty("x", n=2 * N)
    for count in range(3):
        own, total = vectors(10 + count)
        x[:N].copy_(own[rank])
        right.append(torch.allclose(made(x[:N], out=torch.empty(N)), total))
    own, total = vectors(20)
    x[N:].copy_(own[rank])
    return [*right, torch.allclose(made(x[N:]), total)]


def refused_calls(made: GroupDispatcher, rank: int) -> dict[str, str]:
    x = made.empty("x", n=N)
    return {
        "shape": refusal(lambda: made(torch.zeros(96 + rank))),
        "own fault": refusal(lambda: made(torch.zeros(100, dtype=torch.float64 if rank else None))),
        "all at fault": refusal(lambda: made(torch.zeros(4, 4))),
        "other call": refusal(lambda: made.empty("x", n=7) if rank else made(torch.zeros(70))),
        "place": refusal(lambda: made(x[:64] if rank else x[64:128])),
        "part of it": refusal(lambda: made(x[:64] if rank else torch.zeros(64))),
        "out": refusal(lambda: made(torch.zeros(90), out=torch.zeros(90 + rank))),
        "not shared": refusal(lambda: made.empty("y", n=7)),
        "improve": refusal(lambda: made.improve(n=7)),
        **refused_values(made, rank),
        **refused_memory(made, rank),
    }


def disagreements(rank: int, folder: Path) -> Any:
    """Dispatchers that cannot be made."""
    other = config("pull", "cpu", factor=1 + rank)
    single = dist.new_group([0])
    return {
        "config": refusal(lambda: make(folder, config=other)),
        "fixed": refusal(lambda: make(folder, n=N + rank)),
        "argument": refusal(lambda: make(folder, on_miss="wait" if rank == 0 else "never")),
        "serve": refusal(lambda: make(folder, on_miss="serve")),
        "explore": refusal(lambda: make(folder, explore=True)),
        "world": refusal(lambda: make(folder, world=3)),
        "table": refusal(lambda: make(folder, table=table(device=str(rank)))),
        "table of another world": refusal(lambda: make(folder, table=table(fixed={"world": 4}))),
        "version": refusal(lambda: with_version(f"9.{rank}", lambda: make(folder))),
        "one device": refusal(lambda: dispatcher("matmul", "cpu", group=dist.group.WORLD)),
        "target": refusal(lambda: dispatcher("matmul_reduce_scatter", "h100x4", group=dist.group.WORLD)),
        "other group": refusal(
            lambda: dispatcher(
                "sum_of_ranks", str(folder / "cpux2.toml"), template=SumTemplate(), group=single
            )
        ),
        "text": refusal(lambda: dispatcher("sum_of_ranks", "cpu", template=SumTemplate(), group="world")),
    }


def table(**changes: Any) -> DispatchTable:
    """`push` up to 100 elements, `pull` for more."""
    segments = Segment(1, 100, 0), Segment(101, 1000, 1)
    given: Mapping[str, Any] = {
        "fixed": {"world": 2},
        "kernels": (config("push", "cpu"), config("pull", "cpu")),
    }
    parts = {
        **{"operator": "sum_of_ranks", "dtype": "float32", "attrs": {}, "dims": ("n", "world"), "vary": "n"},
        **{"dynamic": (), "template": "sum_of_ranks", "template_version": SumTemplate().version},
        **{"target": "cpux2", "target_fingerprint": "0", "arch": "native", "device": "", "protocol": ""},
        **{"software": {}, "model": "0", "segments": segments},
    }
    return DispatchTable(**{**parts, **given, **changes})


def tabled(rank: int, folder: Path) -> Any:
    """Kernels of a table."""
    with make(folder, table=table()) as made:
        right = []
        for n in (64, N):
            own, total = vectors(n, n)
            right.append(torch.allclose(made(own[rank]), total))
        choices = [made.choose(n=n) for n in (64, N)]
        return {"right": right, "choices": [[choice.source, choice.config["way"]] for choice in choices]}


def frozen(rank: int, folder: Path) -> Any:
    """Frozen dispatchers, whose ranks have records and tables of their own, and which are reloaded.

    Their kernels were built by another process: no rank starts one to lower.
    """
    started: list[int] = []

    def no_process(*_: object, **__: object) -> None:
        started.append(rank)
        raise TileSightError("a process was started to lower")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilesight.executor.local.LocalExecutor.__init__", no_process)
        said = _frozen(rank, folder)
        said["started for a built kernel"] = list(started)
        with make(folder, config=config("pull", "cpu")) as made:
            said["missing"] = refusal(lambda: made.prepare(n=N + 8))
    return {**said, "started": started}


def _frozen(rank: int, folder: Path) -> dict[str, Any]:
    database, file = f"sqlite:///{folder}/performance-{rank}.db", folder / f"table-{rank}.json"
    given = {"database": database, "table": file, "frozen": True}
    said: dict[str, Any] = {}
    write_table(table(), file)
    with make(folder, **given) as made:
        own, total = vectors(0)
        said["digest"] = made.digest()
        said["right"] = [torch.allclose(made(own[rank]), total)]
        said["unknown"] = refusal(lambda: made(torch.zeros(2000)))
        said["source"] = [made.choose(n=N).source]
        record_winner(made, N, config("push", "cpu"))
        made.reload()
        said["source"].append(made.choose(n=N).source)
        said["right"].append(torch.allclose(made(own[rank]), total))
        said["reloaded"] = made.digest()
        if rank:
            file.write_text("no table")
        said["refused reload"] = refusal(made.reload)
        write_table(table(), file)
        said["kept"] = [made.digest(), torch.allclose(made(own[rank]), total)]
        if rank:
            record_winner(made, N + 8, config("pull", "cpu"))
        said["other records at reload"] = refusal(made.reload)
    said["other records"] = refusal(lambda: make(folder, **given))
    write_table(table(fixed={"world": 2}, model=str(rank)), file)
    said["other tables"] = refusal(lambda: make(folder, table=file, frozen=True))
    said["one frozen"] = refusal(lambda: make(folder, frozen=rank == 0))
    return said


def record_winner(made: GroupDispatcher, n: int, chosen: Config) -> None:
    """Record a winner in the database of this rank."""
    setup, template = made._shapes.improver._setup, made.problem.template
    workload = made.problem.workload((n,))
    space = template.space(workload, made.problem.target)
    context = find_context(template, workload, setup.placement, "m", space, setup.protocol)
    trial = TrialRecord(
        chosen,
        Status.VERIFIED,
        build=BuildResult("/cache/kernel.so", entry="f"),
        measurement=Measurement((10.0,), relative_error=0.0),
    )
    decision = Decision(chosen, (), "the only finalist")
    record_comparison(
        setup.store, context, template, space, [trial], Comparison((), (), (), decision), {}, "for a test"
    )


def recorded(rank: int, folder: Path) -> Any:
    """A record that rank 0 has, and rank 1 has not."""
    database = f"sqlite:///{folder}/performance-{rank}.db"
    pair, best = str(folder / "cpux2.toml"), folder / "best"
    if rank == 0:
        [found] = tilesight.tune("sum_of_ranks", pair, f"n={N}", effort="quick", workers=1, database=database)
        assert found.best is not None
        best.write_text(str(found.best.config))
    with make(folder, database=database, template=None) as made:
        own, total = vectors(0)
        right = torch.allclose(made(own[rank]), total)
        choice = made.choose(n=N)
        [other] = made.prepare(n=N + 8)
        is_best = str(choice.config) == best.read_text()
        return {"right": right, "is best": is_best, "source": choice.source, "other": other.source}


def hurry(**limits: float) -> None:
    """Shorter limits of the watch."""
    defaults = Watch.__init__.__kwdefaults__
    assert defaults is not None
    defaults.update(limits)


def killed_in_call(rank: int, folder: Path) -> Any:
    """Rank 1 is killed while rank 0 waits for it in a kernel."""
    hurry(look_s=0.1, stuck_s=0.5)
    made = make(folder, config=config("pull", "cpu"))
    own, _ = vectors(0)
    made(own[rank])
    print("ready", flush=True)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    made(own[rank])
    return "it went on"


def killed_before_step(rank: int, folder: Path) -> Any:
    """Rank 1 is killed while rank 0 waits for it to come to a new shape."""
    made = make(folder, config=config("pull", "cpu"))
    if rank:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return refusal(lambda: made(torch.zeros(N)))


def other_calls(rank: int, folder: Path) -> Any:
    """Rank 0 calls a new shape, and rank 1 one that it knows, and waits in its kernel."""
    hurry(look_s=0.1, stuck_s=0.5, late_s=1.0)
    made = make(folder, config=config("pull", "cpu"))
    made(torch.zeros(N))
    return refusal(lambda: made(torch.zeros(N + 1 - rank)))


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    if under_torchrun := "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
    else:
        rank, world = map(int, sys.argv[3:])
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    said = globals()[name](dist.get_rank(), folder)
    print(json.dumps(said), flush=True)
    if under_torchrun:
        dist.destroy_process_group()
    else:
        os._exit(0)  # a peer may have been killed, and gloo would wait for it


if __name__ == "__main__":
    main()
