"""Contexts and trials for databases of tests: fixed ones, and random ones that fill every field."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tilesight.database import Store, open_store
from tilesight.errors import Failure, FailureKind
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.session import Context
from tilesight.records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from tilesight.records.winners import Winner

CENSUS_REJECTED = {"smem": 3, "threads": 2}


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "empty.db")
        open_store(str(file)).close()
        return file.read_bytes()


def empty_database(path: Path) -> str:
    """Write a database without records to `path`, as a copy of one that is made once; its URL."""
    path.write_bytes(_empty())
    return f"sqlite:///{path}"


def context(**changes: Any) -> Context:
    values: dict[str, Any] = {
        "template": "matmul_hopper",
        "template_version": "0123456789ab",
        "workload": Workload(
            "matmul", {"m": 4096, "n": 1024, "k": 8192}, "bfloat16", {"transposed": True, "splits": 2}, "M0"
        ),
        "target": "h200",
        "target_fingerprint": "f00d",
        "arch": "sm_90a",
        "model": "analytical-1",
        "space": "5face",
        "software": {"tilelang": "0.1.15", "nvcc": "13.0"},
        "device": "NVIDIA H200",
        "protocol": "cold",
    }
    return Context(**{**values, **changes})


def winner(store: Store, context: Context, *, any_dynamic: bool = False) -> Winner | None:
    """The winner of the context's own workload."""
    found = store.winners(context, context.workload.dims, any_dynamic=any_dynamic)
    assert len(found) <= 1
    return found[0] if found else None


def config(number: int) -> Config:
    return Config({"block_m": number, "stages": 3, "swizzle": True, "policy": "square"})


def failure(kind: FailureKind, message: str = "refused") -> Failure:
    return Failure(kind, message, "the tail of its output")


def prediction(latency_us: float = 10.0) -> Prediction:
    return Prediction(
        latency_us,
        {"matrix": 0.9, "dram": 0.4},
        "matrix",
        {"matrix": 9.0, "launch": 1.0},
        0.1,
        ("a note",),
        "analytical-1",
    )


def build() -> BuildResult:
    return BuildResult(
        "/cache/ab12/kernel.so",
        entry="main_kernel",
        resources={"registers": 168},
        compiler="nvcc 13.0",
        seconds=1.7,
        binary="b1",
    )


def measurement(*samples_us: float, relative_error: float | None = 1e-3) -> Measurement:
    protocol: dict[str, str | int | float | bool] = {
        "l2": "cold",
        "samples": len(samples_us),
        "graph": False,
        "flush_factor": 2.5,
    }
    return Measurement(
        samples_us,
        relative_error=relative_error,
        environment={"driver": "570.1"},
        protocol=protocol,
        observed={"clock_mhz": 1980.0},
    )


def predicted(number: int, latency_us: float = 10.0) -> TrialRecord:
    return TrialRecord(
        config(number),
        Status.PREDICTED,
        prediction(latency_us),
        fingerprint=f"fp{number}",
        lowering_seconds=0.25,
    )


def built(number: int) -> TrialRecord:
    return TrialRecord(config(number), Status.BUILT, prediction(), build(), fingerprint=f"fp{number}")


def measured(number: int, *samples_us: float) -> TrialRecord:
    return TrialRecord(
        config(number), Status.MEASURED, prediction(), build(), measurement(*samples_us, relative_error=None)
    )


def verified(number: int, *samples_us: float) -> TrialRecord:
    return TrialRecord(
        config(number),
        Status.VERIFIED,
        prediction(),
        build(),
        measurement(*samples_us),
        fingerprint=f"fp{number}",
    )


def failed(number: int, kind: FailureKind) -> TrialRecord:
    """A trial as the tuner leaves it when it fails in the stage of `kind`."""
    why = failure(kind)
    stage = kind.value.partition("_")[0]
    if stage == "build":
        return TrialRecord(config(number), Status.FAILED, prediction(), BuildResult(None, why), failure=why)
    if stage in ("run", "wrong", "nondeterministic"):
        return TrialRecord(
            config(number), Status.FAILED, prediction(), build(), Measurement(failure=why), why
        )
    return TrialRecord(config(number), Status.FAILED, failure=why)


class Draw:
    """Random values, which fill every field in some of them, with awkward numbers and text."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def number(self) -> float:
        scale = 10.0 ** self.random.randint(-300, 300)
        return self.random.choice(
            [0.0, 0.1, 1 / 3, sys.float_info.max, sys.float_info.min, 5e-324, self.random.random() * scale]
        )

    def positive(self) -> float:
        return self.number() or 1e-9

    def text(self) -> str:
        pool = [
            "",
            "a",
            "Grüße",
            "日本語",
            "🜂",
            "'; DROP TABLE trials; --",
            '"quoted"',
            "a\nb\tc\r",
            "%s ? :x {}",
            "\\u0000",
            "NaN",
            "x" * 5000,
        ]
        return "".join(self.random.choices(pool, k=self.random.randint(0, 3)))

    def mapping(self, value: Callable[[], Any]) -> dict[str, Any]:
        return {self.text(): value() for _ in range(self.random.randint(0, 4))}

    def plain(self) -> str | int | float | bool:
        values: list[str | int | float | bool] = [
            self.text(),
            self.random.randint(-(2**70), 2**70),
            self.number(),
            True,
            False,
        ]
        return self.random.choice(values)

    def failure(self) -> Failure:
        return Failure(self.random.choice(list(FailureKind)), self.text(), self.text())

    def prediction(self) -> Prediction:
        notes = tuple(self.text() for _ in range(self.random.randint(0, 3)))
        return Prediction(
            self.positive(),
            self.mapping(self.number),
            self.text(),
            self.mapping(self.number),
            self.number(),
            notes,
            self.text(),
        )

    def build(self, *, works: bool) -> BuildResult:
        resources = self.mapping(lambda: self.random.randint(0, 2**64))
        artifact, why = (self.text() or "k.so", None) if works else (None, self.failure())
        return BuildResult(artifact, why, self.text(), resources, self.text(), self.number(), self.text())

    def measurement(self, *, works: bool, checked: bool) -> Measurement:
        samples = tuple(self.positive() for _ in range(self.random.randint(1, 30))) if works else ()
        error = self.number() if checked else None
        why = None if works else self.failure()
        return Measurement(
            samples, why, error, self.mapping(self.text), self.mapping(self.plain), self.mapping(self.number)
        )

    def maybe(self, value: Callable[[], Any]) -> Any:
        return value() if self.random.random() < 0.5 else None

    def trial(self, number: int) -> TrialRecord:
        status = self.random.choice(list(Status))
        fails, measures = status is Status.FAILED, status in (Status.NOISY, Status.MEASURED, Status.VERIFIED)
        built = status is Status.BUILT or self.random.random() < 0.5
        return TrialRecord(
            config=Config(
                {"number": number, self.text() or "p": self.text(), "flag": self.random.random() < 0.5}
            ),
            status=status,
            prediction=self.prediction() if status is Status.PREDICTED else self.maybe(self.prediction),
            build=self.build(works=not fails or self.random.random() < 0.5) if built else None,
            measurement=(
                self.measurement(
                    works=not fails or self.random.random() < 0.5,
                    checked=status is Status.VERIFIED or self.random.random() < 0.5,
                )
                if measures or fails
                else None
            ),
            failure=self.failure() if fails else None,
            fingerprint=self.text(),
            lowering_seconds=self.number(),
        )
