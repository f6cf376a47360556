"""Predict every candidate of a corpus with the shipped model. No GPU needed.

    python experiments/outside/predict.py CORPUS --out predictions.csv [--target h200] [--processes 2]
        [--profiles profiles.jsonl] [--half looked] [--inputs] [--lowered FOLDER]

Values of sizes that a kernel takes at run time are given, and with `--inputs` also the integer tensors with
which the kernel was measured, and floating-point tensors of the same distribution. Worker processes lower and
predict; a crash or a hang costs one candidate. Rows come in the order of measure.py; candidates that OUT
already has are left out.
`sigma` is the model's one sigma of the logarithm of the time. `--profiles` also keeps the profiles.
`--lowered` keeps what the candidates were lowered to, some 10 kB each, and reads it in place of lowering them
again: a change of the reader or of the model is judged on a set in half a minute. Its files are found by the
code of the lowering, too, so a change of that lowers anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from corpus import HALVES, Candidate, Corpus, half_of, in_order  # noqa: E402

if TYPE_CHECKING:
    from tilesight.lowering.lower import Lowered
    from tilesight.profile.values import KernelProfile
    from tilesight.records.trial import Prediction
    from tilesight.target.spec import Target

COLUMNS = (
    *("name", "group", "config", "key", "predicted_us", "sigma", "limiting", "unknown_calls", "notes"),
    *("terms_us", "utilization", "blocks", "threads", "shared_bytes", "kernels", "model", "target"),
    *("seconds", "failure"),
)
LIMIT_S = 120.0


def preload() -> None:
    import tilelang  # noqa: F401

    from tilesight.api import foreign_kernel  # noqa: F401
    from tilesight.costmodel import extract, foreign_model

    assert extract
    foreign_model()


def lowered_of(candidate: Candidate, target: Target, corpus: Corpus, kept: Path | None) -> Lowered:
    """What a candidate is lowered to, from the folder `kept` if it is there; else it is lowered and kept."""
    import tilelang  # noqa: F401
    import tvm

    from tilesight.lowering.dynamic import lowering_version
    from tilesight.lowering.lower import Lowered, lower

    path = kept and kept / f"{candidate.key}-{target.name}-{lowering_version()}.json.xz"
    if path and path.exists():
        # saved together, so that the function and its host part have the same variables
        return Lowered(*tvm.ir.load_json(lzma.decompress(path.read_bytes()).decode()))
    lowered = lower(corpus.function(candidate), target, candidate.pass_configs, only_read=True)
    if path:
        text = tvm.ir.save_json(tvm.runtime.convert([lowered.traced, lowered.host, lowered.device]))
        path.write_bytes(lzma.compress(text.encode()))
    return lowered


def predict(item: tuple[str, Path, Candidate, bool, Path | None]) -> tuple[dict[str, object], str]:
    """The figures of a row, and the profiles as text. Raises what TileLang or the model raises."""
    from tilesight.api.foreign_kernel import ForeignKernel, call_of, read_lowered
    from tilesight.api.run_time_facts import RunTimeFacts
    from tilesight.costmodel import foreign_model
    from tilesight.profile.codec import profiles_text
    from tilesight.target.spec import load_target

    begin = time.perf_counter()
    target_name, folder, candidate, with_inputs, kept = item
    target = load_target(target_name)
    corpus = Corpus(folder)
    lowered = lowered_of(candidate, target, corpus, kept)
    kernel = ForeignKernel(candidate.name, lowered.traced, candidate.pass_configs)
    inputs = [corpus.example(argument) for argument in candidate.arguments] if with_inputs else None
    call = call_of(kernel, lowered, RunTimeFacts(dict(candidate.sizes), inputs))
    profiles = tuple(profile for profile, _ in read_lowered(kernel, lowered, target, call))
    found = foreign_model().predict(profiles, target)
    row = figures_of(found, profiles) | {"seconds": f"{time.perf_counter() - begin:.2f}"}
    return row, profiles_text(profiles)


def figures_of(found: Prediction, profiles: Sequence[KernelProfile]) -> dict[str, object]:
    """The columns of a prediction."""
    return {
        "predicted_us": f"{found.latency_us:.4f}",
        "sigma": f"{math.log1p(found.uncertainty):.4f}",
        "limiting": found.limiting,
        "unknown_calls": sum(len(one.unknown_calls) for one in profiles),
        "notes": "; ".join(found.notes),
        "terms_us": json.dumps({name: round(value, 3) for name, value in found.terms_us.items()}),
        "utilization": json.dumps({name: round(value, 3) for name, value in found.utilization.items()}),
        "blocks": "+".join(str(one.blocks) for one in profiles),
        "threads": "+".join(str(one.block_threads) for one in profiles),
        "shared_bytes": "+".join(str(one.shared_bytes) for one in profiles),
        "kernels": len(profiles),
        "model": found.model,
    }


def main(given: argparse.Namespace) -> None:
    from tilesight.workers import Done, WorkerPool

    folder = given.corpus.resolve()
    known = given.out.exists()
    done = {row["key"] for row in csv.DictReader(given.out.open())} if known else set()
    wanted = [
        one
        for one in in_order(Corpus(folder))
        if one.key not in done and given.half in ("all", half_of(one.name))
    ][: given.most]
    until = time.monotonic() + given.limit

    if given.lowered:
        given.lowered.mkdir(parents=True, exist_ok=True)

    def items() -> Iterator[tuple[str, Path, Candidate, bool, Path | None]]:
        for one in wanted:
            if time.monotonic() > until:
                return
            yield given.target, folder, one, given.inputs, given.lowered and given.lowered.resolve()

    profiles = given.profiles.open("a") if given.profiles else None
    count = 0
    with given.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not known:
            writer.writeheader()
        with WorkerPool(given.processes, timeout_s=LIMIT_S, preload=preload) as pool:
            for number, outcome in pool.run(predict, items()):
                one = wanted[number]
                row: dict[str, Any] = {
                    "name": one.name,
                    "group": one.group,
                    "config": json.dumps(one.config),
                    "key": one.key,
                    "target": given.target,
                }
                if isinstance(outcome, Done):
                    figures, text = outcome.value
                    row |= figures
                    count += 1
                    if profiles is not None:
                        profiles.write(json.dumps({"key": one.key, "profiles": text}) + "\n")
                        profiles.flush()
                else:
                    said = getattr(outcome, "message", "") or getattr(outcome, "reason", "")
                    row["failure"] = " ".join(f"{type(outcome).__name__}: {said}".split())[:300]
                writer.writerow(row)
                file.flush()
    print(f"{count} of {len(wanted)} candidates predicted, into {given.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict every candidate of a corpus.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--profiles", type=Path)
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which nothing begins")
    parser.add_argument("--inputs", action="store_true", help="give the tensors of the captured calls")
    parser.add_argument("--lowered", type=Path, help="folder that keeps what candidates are lowered to")
    parser.add_argument("--most", type=int, default=10**9)
    main(parser.parse_args())
