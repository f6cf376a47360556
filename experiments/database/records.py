"""Records as sessions leave them, of made-up numbers: the same ones for the same seed.

Texts and lists are as long as those of real sessions on an H200: a record is about 3 KiB in SQLite, its
indices included.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from tilesight.errors import Failure, FailureKind
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.session import Context
from tilesight.records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord

SAMPLES = 40
PROTOCOL = {
    "name": "default",
    "l2": "cold",
    "launch": "eager",
    "burst_ms": 15.0,
    "rest": 3.0,
    "inputs": "random",
    "input_sets": 4,
}
EFFORT = {
    "version": 2,
    "warmup_ms": 5.0,
    "min_samples": 20,
    "max_samples": 100,
    "max_ms": 300.0,
    "precision": 0.006,
    "seed": 0,
}
SOFTWARE = {"tilelang": "0.1.15", "torch": "2.13.0", "nvcc": "nvcc 13.0.88", "driver": "580.159.04"}
ENVIRONMENT = {
    "device": "NVIDIA H200",
    "uuid": "5f7e2a4c",
    "driver": "580.159.04",
    "torch": "2.13.0",
    "tilelang": "0.1.15",
}
UNITS = ("matrix", "vector", "special", "shared", "l2", "dram", "issue", "latency")
MODELS = (
    (8192, 8192),
    (4096, 4096),
    (14336, 4096),
    (4096, 14336),
    (28672, 8192),
    (8192, 28672),
    (6144, 4096),
    (1024, 8192),
)


def workloads(rng: random.Random) -> list[Workload]:
    """20,000: half of them shapes of a serving engine (dense in m, few n and k), the others spread over all
    sizes."""
    found: dict[str, Workload] = {}
    for n, k in MODELS:
        for m in rng.sample(range(1, 8193), 1250):
            _add(found, Workload("matmul", {"m": m, "n": n, "k": k}, "bfloat16"))
    while len(found) < 14_000:
        _add(found, matmul(rng))
    while len(found) < 18_000:
        _add(found, attention(rng))
    while len(found) < 20_000:
        _add(found, Workload("rms_norm", {"m": size(rng, 17), "n": size(rng, 15)}, "float16"))
    return list(found.values())


def matmul(rng: random.Random) -> Workload:
    return Workload("matmul", {name: size(rng, 15) for name in "mnk"}, rng.choice(("bfloat16", "float16")))


def attention(rng: random.Random) -> Workload:
    heads = 2 ** rng.randrange(3, 7)
    dims = {
        "batch": 2 ** rng.randrange(6),
        "heads": heads,
        "kv_heads": heads // rng.choice((1, 4, 8)),
        "seq": size(rng, 15),
        "dim": 128,
    }
    return Workload("flash_attention", dims, "bfloat16", {"causal": rng.random() < 0.5})


def size(rng: random.Random, bits: int) -> int:
    return int(2 ** rng.uniform(0, bits))


def context(workload: Workload) -> Context:
    return Context(
        template=f"{workload.operator}_hopper",
        template_version="0123456789ab",
        workload=workload,
        target="h200",
        target_fingerprint="feedbeef01234567",
        arch="sm_90a",
        model="learned-3f2a91c07b55",
        space="5face5face5f",
        software=SOFTWARE,
        device="NVIDIA H200",
        protocol="v2 cold eager 15 ms rest x3 random x4",
    )


def trials(rng: random.Random, count: int) -> Iterator[TrialRecord]:
    """Measured candidates; one in twenty has failed."""
    for number in range(count):
        config = Config(
            {
                "block_m": 64,
                "block_n": 128,
                "block_k": 64,
                "stages": 3,
                "threads": 256,
                "policy": "square",
                "number": number,
            }
        )
        time_us = rng.lognormvariate(4, 1)
        prediction = Prediction(
            time_us * rng.uniform(0.9, 1.1),
            {unit: rng.random() for unit in UNITS},
            rng.choice(UNITS),
            {unit: rng.random() * time_us for unit in UNITS},
            0.12,
            ("4 warps share a unit",),
            "learned-3f2a91c07b55",
        )
        if number % 20 == 19:
            failure = Failure(
                FailureKind.RUN_ERROR,
                "CUDA error: an illegal memory access was encountered",
                "at kernel.cu:112\n" * 10,
            )
            yield TrialRecord(
                config,
                Status.FAILED,
                prediction,
                _build(rng),
                Measurement(failure=failure),
                failure,
                _hex(rng),
                0.21,
            )
            continue
        samples = tuple(time_us * rng.uniform(0.98, 1.04) for _ in range(SAMPLES))
        observed = {"sm_clock_mhz": 1755.0, "power_w": 512.3, "temperature_c": 54.0}
        measurement = Measurement(
            samples, None, rng.uniform(1e-4, 2e-3), ENVIRONMENT, {**PROTOCOL, **EFFORT}, observed
        )
        yield TrialRecord(
            config, Status.VERIFIED, prediction, _build(rng), measurement, None, _hex(rng), 0.21
        )


def _build(rng: random.Random) -> BuildResult:
    artifact = f"/home/somebody/.cache/tilesight/kernels/{_hex(rng)}/kernel.so"
    resources = {"registers": rng.randrange(64, 256), "spill_bytes": 0, "smem_bytes": 147456}
    return BuildResult(artifact, None, "main_kernel", resources, "nvcc 13.0.88", 2.7, _hex(rng))


def _hex(rng: random.Random) -> str:
    return f"{rng.getrandbits(128):032x}"


def _add(found: dict[str, Workload], workload: Workload) -> None:
    found[workload.key] = workload


def where_and_when() -> Mapping[str, str]:
    """Columns of every result."""
    lines = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if platform.system() == "Linux" else []
    )
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": model,
        "python": platform.python_version(),
    }
