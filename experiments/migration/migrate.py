"""Moves two of TileLang's own examples to `tilesight.autotune` by their import, and tunes both versions.

    git clone https://github.com/tile-ai/tilelang
    python experiments/migration/migrate.py tilelang/examples                       # with a GPU
    python experiments/migration/migrate.py tilelang/examples --predict h200        # without one

An example is found below the folder by its file name. `CHANGES` replaces lines of its text; the result runs
from a temporary file. With a GPU, TileLang tunes each kernel from the original text, then TileSight from the
changed one, each in a separate process with empty caches. TileLang's profiler checks and times both winners
(`profiled_us`); `its_own_us` is the time that the tuner reports. A third process calls the changed kernel
again and finds its result in the database.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Example:
    file: str
    kernel: str
    changes: tuple[tuple[str, str], ...]  # line as it is, line as it will be
    arguments: dict[str, int | bool]
    reference: Callable[..., Any]


def _attention(q: Any, k: Any, v: Any) -> Any:
    import torch.nn.functional as functional

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


def _gemv(a: Any, b: Any) -> Any:
    return b @ a


EXAMPLES = {
    "attention": Example(
        "example_gqa_fwd_bshd.py",
        "flashattn",
        (("from tilelang.autotuner import *", "from tilesight import autotune"),),
        {"batch": 1, "heads": 32, "seq_len": 4096, "dim": 128, "is_causal": False, "groups": 4},
        _attention,
    ),
    "gemv": Example(
        "example_gemv.py",
        "get_autotuned_kernel",
        (("from tilelang.autotuner import autotune", "from tilesight import autotune"),),
        {"N": 8192, "K": 8192},
        _gemv,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="TileLang's examples, or any folder with these two files below it"
    )
    parser.add_argument(
        "--predict", metavar="TARGET", help="rank by the model for that target; no GPU is needed"
    )
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # what a child process does: example, way
    asked = parser.parse_args()
    if asked.one:
        print("RESULT " + json.dumps(_one(asked.folder, EXAMPLES[asked.one[0]], asked.one[1], asked.predict)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in EXAMPLES:
        with tempfile.TemporaryDirectory() as places:
            ways = ["tilesight", "again"] if asked.predict else ["tilelang", "tilesight", "again"]
            found[name] = {way: _child(asked, name, way, Path(places)) for way in ways}
        for way, said in found[name].items():
            print(
                f"{name:10} {way:10} " + "  ".join(f"{key}={value}" for key, value in said.items()),
                flush=True,
            )
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _child(asked: argparse.Namespace, name: str, way: str, places: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TILESIGHT_DB": f"sqlite:///{places}/performance.db",
        "TILESIGHT_CACHE_DIR": f"{places}/cache",
        "TILELANG_CACHE_DIR": f"{places}/{way}-tilelang",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")])
        ),
    }
    command = [
        sys.executable,
        __file__,
        str(asked.folder.resolve()),
        "--one",
        name,
        way,
        *(["--predict", asked.predict] if asked.predict else []),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=places)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    return {"failed": (done.stderr or done.stdout).strip().splitlines()[-1:]}


def _one(folder: Path, example: Example, way: str, predict: str | None) -> dict[str, Any]:
    module = _load(folder, example, changed=way != "tilelang", predict=predict)
    kernel = getattr(module, example.kernel)
    begin = time.perf_counter()
    if predict:
        result = kernel.tune(**example.arguments)
        seconds = time.perf_counter() - begin
        best = result.best
        return {
            "seconds": round(seconds, 2),
            "from_database": result.from_database,
            "trials": len(result.trials),
            "config": dict(best.config),
            "predicted_us": round(best.predicted_us, 2),
        }
    made = kernel.compile(**example.arguments)
    seconds = time.perf_counter() - begin
    profiler = made.get_profiler()
    wrong = ""
    try:
        profiler.assert_allclose(example.reference, rtol=1e-2, atol=1e-2)
    except AssertionError as error:
        wrong = str(error).splitlines()[0]
    said = {
        "seconds": round(seconds, 2),
        "config": {name: str(value) for name, value in made.config.items()},
        "its_own_us": round(1e3 * made.latency, 2),
        "profiled_us": round(1e3 * float(profiler.do_bench(warmup=200, rep=500, return_mode="median")), 2),
        "result": wrong or "right",
    }
    facts = getattr(made, "tilesight", None)
    return said | ({"source": facts.source.value, "status": facts.status.value} if facts is not None else {})


def _load(folder: Path, example: Example, *, changed: bool, predict: str | None) -> Any:
    """The example as a module, from its text or from the changed one."""
    path = next(folder.rglob(example.file), None)
    if path is None:
        raise SystemExit(
            f"{folder} has no {example.file} below it; give the folder 'examples' of TileLang's repository"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    for old, new in example.changes if changed else ():
        places = [number for number, line in enumerate(lines) if line.strip() == old]
        if len(places) != 1:
            raise SystemExit(
                f"{path} has {len(places)} lines '{old}'; this program knows the examples of TileLang 0.1.15"
            )
        lines[places[0]] = new
    if predict:
        # the target is not here, so it is named; nothing of it is built
        import tilesight
        from tilesight.decorator import autotune

        tilesight.__dict__["autotune"] = functools.partial(autotune, target=predict, effort="predict")
    copy = Path(tempfile.mkdtemp()) / example.file
    copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[copy.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
