"""Compare predictions for chips that were not measured with published figures.

    python experiments/public_bands/bands.py [SECONDS] [ROW...]     SECONDS for each row (default 120)

Each row is one workload on one chip, with the rate that others measured for a vendor's library or a published
kernel. The model ranks the space of the project's template, and the predicted best is compared with that
rate. If a compiler for the chip is installed, the best few are built, and their predictions are corrected by
the compiler's registers and spills. Nothing is measured: `PREDICTED` and `WITH COMPILER` are predictions,
`published` are results of others with other kernels.
"""

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tilesight import rank
from tilesight.api.compilation import compile_candidate
from tilesight.errors import NoCandidateError
from tilesight.machine.toolchain import missing_compiler
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.records.session import SessionResult
from tilesight.records.trial import Prediction, Status
from tilesight.settings import load_settings
from tilesight.target.spec import load_target
from tilesight.tuner.resolve import find_operator, find_template

BUILT = 8  # predicted best candidates that are built if a compiler for the chip is installed
MARGIN = 0.25  # relative distance from the band within which a prediction agrees with it


@dataclass(frozen=True)
class Band:
    target: str
    kernel: str
    shape: str
    dtype: str
    low: float  # published TFLOP/s
    high: float
    of: str  # the kernel and the chip


BANDS = (
    Band("a100", "matmul", "m=8192,n=8192,k=8192", "float16", 238, 257, "cuBLAS, A100, large shapes"),
    Band("h100", "matmul", "m=8192,n=8192,k=1024", "float16", 628, 628, "published kernel, H800"),
    Band("h100", "matmul", "m=8192,n=8192,k=8192", "float16", 758, 758, "published kernel, H800"),
    Band("h100", "matmul", "m=8192,n=8192,k=16384", "float16", 766, 766, "published kernel, H800"),
    Band("mi300x", "matmul", "m=8192,n=8192,k=8192", "float16", 391.7, 391.7, "rocBLAS, MI300X"),
    Band(
        "mi300x",
        "flash_attention",
        "batch=64,heads=64,seq_len=2048,head_dim=128,causal=false",
        "float16",
        368,
        495,
        "CK flash attention, MI300X (its sequence length is not stated)",
    ),
)


def off(rate: float, band: Band) -> float:
    """Relative distance of a rate from the nearer end of the band; 0 within the band."""
    return rate / band.high - 1 if rate > band.high else rate / band.low - 1 if rate < band.low else 0.0


def corrected(band: Band, session: SessionResult) -> tuple[Config, Prediction, str]:
    """(config, prediction, compiler) of the built candidate with the best corrected prediction."""
    target, workload = load_target(band.target), session.context.workload
    template = find_template(find_operator(band.kernel), target, workload.dtype)
    found = []
    for trial in [t for t in session.trials if t.status is Status.PREDICTED][:BUILT]:
        try:
            done = compile_candidate(
                Candidate(workload, target, template, trial.config), load_settings().cache_dir
            )
        except NoCandidateError as error:
            print(f"{trial.config}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        print(
            f"{trial.config}: {done.predicted.latency_us:.1f} -> {done.corrected.latency_us:.1f} us "
            f"{dict(done.build.resources)}",
            file=sys.stderr,
        )
        found.append((trial.config, done.corrected, done.build.compiler))
    return min(found, key=lambda item: item[1].latency_us)


def row(band: Band, seconds: float, database: Path) -> dict[str, object]:
    (session,) = rank(
        band.kernel, band.target, band.shape, dtype=band.dtype, budget_s=seconds, database=str(database)
    )
    best = session.best
    assert best is not None
    assert best.prediction is not None
    config, found, compiled = best.config, best.prediction, ""
    from_ir = session.flops / found.latency_us / 1e6
    target = load_target(band.target)
    if missing_compiler(target, runnable=False) is None:
        config, found, compiled = corrected(band, session)
    rate = session.flops / found.latency_us / 1e6
    return {
        "target": band.target,
        "workload": f"{band.kernel} {band.shape} {band.dtype}",
        "published_tflops": [band.low, band.high],
        "published_by": band.of,
        "predicted_tflops": round(from_ir, 1),
        "with_compiler_tflops": round(rate, 1) if compiled else None,
        "compiler": compiled,
        "predicted_us": round(found.latency_us, 1),
        "off": round(off(rate, band), 3),
        "within_margin": abs(off(rate, band)) <= MARGIN,
        "peak_tflops": target["device.spec_matrix_tflops"],
        "candidates": len(session.trials),
        "config": dict(config),
        "limiting": found.limiting,
        "terms_us": {name: round(us, 1) for name, us in found.terms_us.items()},
        "utilization": {name: round(share, 3) for name, share in found.utilization.items()},
        "notes": list(found.notes),
        "model": found.model,
    }


def main(seconds: float, only: list[str]) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, band in enumerate(BANDS):
            if only and str(number) not in only and band.target not in only:
                continue
            begin = time.monotonic()
            rows.append(row(band, seconds, Path(folder) / "bands.db"))
            print(json.dumps(rows[-1] | {"seconds": round(time.monotonic() - begin)}), file=sys.stderr)
    print(
        f"{'chip':7} {'workload':82} {'published':>11} {'PREDICTED':>9} {'WITH COMPILER':>13} {'off':>7}  "
        "limiting"
    )
    for found in rows:
        low, high = found["published_tflops"]
        published = f"{low:g}" if low == high else f"{low:g}-{high:g}"
        print(
            f"{found['target']:7} {found['workload']:82} {published:>11} {found['predicted_tflops']:>9} "
            f"{found['with_compiler_tflops'] or '-':>13} {100 * found['off']:>6.1f}%  {found['limiting']}"
        )
    print(
        "TFLOP/s. PREDICTED: by the model, for the predicted best of the template. WITH COMPILER: the same, "
        "corrected\n"
        "by the compiler's registers and spills of the best few. Neither was measured. off: relative "
        "distance of the\n"
        "last of them from the published band."
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0, sys.argv[2:])
