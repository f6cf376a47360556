"""Programs of several processes in one process group, on a processor, and what each rank says.

`python -m tests.support.group_programs NAME RANK WORLD FOLDER` runs one rank.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.support.group_kernels import SumTemplate, config, cpu_pair
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.group.group_dispatcher import GroupDispatcher
from tilesight.dispatch.group.members import Watch
from tilesight.dispatch.make import dispatcher
from tilesight.errors import TileSightError

N = 512
Program = Callable[[int, Path], Any]


def start(name: str, folder: Path, world: int = 2) -> list[subprocess.Popen[str]]:
    """Start a program in `world` processes."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu_pair(folder)
    environment = {
        **os.environ,
        "TILESIGHT_DB": f"sqlite:///{folder}/performance.db",
        "TILESIGHT_CACHE_DIR": os.environ.get("TILESIGHT_CACHE_DIR", str(folder / "cache")),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, name, str(rank), str(world), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]


def results(processes: list[subprocess.Popen[str]], timeout_s: float = 120.0) -> list[Any]:
    """What each rank says at the end."""
    ended = [process.communicate(timeout=timeout_s) for process in processes]
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


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except TileSightError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def calls(rank: int, folder: Path) -> Any:
    """Right calls of each algorithm, and steps that are refused in between."""
    said: dict[str, Any] = {}
    for way in ("pull", "push", "library"):
        with make(folder, config=config(way, "cpu")) as made:
            right = []
            for count, n in enumerate((N, N, 2 * N, N)):
                own, total = vectors(count, n)
                right.append(torch.allclose(made(own[rank]), total))
            x = made.empty("x", n=2 * N)
            for count in range(3):
                own, total = vectors(10 + count)
                x[:N].copy_(own[rank])
                right.append(torch.allclose(made(x[:N], out=torch.empty(N)), total))
            own, total = vectors(20)
            x[N:].copy_(own[rank])
            right.append(torch.allclose(made(x[N:]), total))
            said[way] = right
            if way == "pull":
                said["choices"] = [str(choice.config) for choice in made.prepare(n=[64, N])]
                said["explained"] = made.explain().splitlines()[-1]
                said["refused"] = {
                    "shape": refusal(lambda: made(torch.zeros(96 + rank))),
                    "own fault": refusal(
                        lambda: made(torch.zeros(100, dtype=torch.float64 if rank else None))
                    ),
                    "all at fault": refusal(lambda: made(torch.zeros(4, 4))),
                    "other call": refusal(lambda: made.empty("x", n=7) if rank else made(torch.zeros(70))),
                    "place": refusal(lambda: made(x[:64] if rank else x[64:128])),
                    "part of it": refusal(lambda: made(x[:64] if rank else torch.zeros(64))),
                    "out": refusal(lambda: made(torch.zeros(90), out=torch.zeros(90 + rank))),
                    "not shared": refusal(lambda: made.empty("y", n=7)),
                    "improve": refusal(lambda: made.improve(n=7)),
                    "refresh": refusal(made.refresh),
                }
                own, total = vectors(30, 3 * N)
                said["goes on"] = torch.allclose(made(own[rank]), total)
    return said


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
        "one device": refusal(lambda: dispatcher("matmul", "cpu", group=dist.group.WORLD)),
        "target": refusal(lambda: dispatcher("matmul_reduce_scatter", "h100x4", group=dist.group.WORLD)),
        "other group": refusal(
            lambda: dispatcher(
                "sum_of_ranks", str(folder / "cpux2.toml"), template=SumTemplate(), group=single
            )
        ),
        "text": refusal(lambda: dispatcher("sum_of_ranks", "cpu", template=SumTemplate(), group="world")),
    }


def killed_in_call(rank: int, folder: Path) -> Any:
    """Rank 1 is killed while rank 0 waits for it in a kernel."""
    Watch.__init__.__kwdefaults__.update(look_s=0.1, stuck_s=0.5)
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
    Watch.__init__.__kwdefaults__.update(look_s=0.1, stuck_s=0.5, late_s=1.0)
    made = make(folder, config=config("pull", "cpu"))
    made(torch.zeros(N))
    return refusal(lambda: made(torch.zeros(N + 1 - rank)))


def main() -> None:
    name, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    said = globals()[name](rank, folder)
    print(json.dumps(said), flush=True)
    os._exit(0)  # a peer may have been killed: gloo would wait for it


if __name__ == "__main__":
    main()
