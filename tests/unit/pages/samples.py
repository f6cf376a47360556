"""What the pages of the tests show, beside sessions: a dataset, a dispatch table, a card, an explanation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tilesight.api.explaining import explain_profiles
from tilesight.api.timelines import profiles_timeline
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.model_file import read_card, shipped
from tilesight.dispatch.table.dispatch_table import DispatchTable, Evidence, Segment
from tilesight.errors import FailureKind
from tilesight.explanation import Explanation
from tilesight.problem.config import Config
from tilesight.profile.codec import profiles_text
from tilesight.profile.values import Access, KernelProfile, MatrixWork, Phase, Role, Space, Trips, Work
from tilesight.records.dataset import Dataset
from tilesight.records.timeline import Timeline
from tilesight.target.spec import load_target

RUNS = {"run-1": {"date": "2026-11-21", "program": "tests", "environment": {"device": "NVIDIA H200"}}}
OPERATORS = ("matmul", "rms_norm")


def profile(blocks: int = 264) -> KernelProfile:
    loads = Access(
        Space.GLOBAL,
        tensor="A",
        mechanism="ld",
        write=False,
        bytes=32768.0,
        instructions=64.0,
        transactions=1024.0,
    )
    work = Work(matrix=(MatrixWork("wgmma.m64n256k16.bf16", 8, 524288.0, warps=4),), accesses=(loads,))
    role = Role("all", 128, (Phase(Trips((64.0,)), work, is_loop=True),))
    return KernelProfile("cuda", "sm_90a", (blocks, 1, 1), 128, 1, 65536, (role,), ())


def dataset(rows: int = 24) -> Dataset:
    """Rows of two operators, two of which failed and half of which have counters."""
    return Dataset.of([_row(number) for number in range(rows)], RUNS)


def _row(number: int) -> dict[str, Any]:
    operator = OPERATORS[number % 2]
    kernel = profile(132 * (1 + number))
    predicted = AnalyticalModel().predict([kernel], load_target("h200"))
    shape = f"m={64 * (1 + number // 8)},n=64"
    row: dict[str, Any] = {
        "operator": operator,
        "workload": f"{operator}({shape};dtype=bfloat16)",
        "shape": shape,
        "dims": "{}",
        "dtype": "bfloat16",
        "attrs": "{}",
        "template": operator,
        "template_version": "v1",
        "target": "h200",
        "config": Config({"block": number}).key,
        "flops": 1e9,
        "min_bytes": 1e6,
        "run": "run-1",
    }
    if number in (5, 6):
        return {
            **row,
            "status": "failed",
            "failure_kind": FailureKind.BUILD_ERROR,
            "failure": "too few registers",
        }
    measured_us = predicted.latency_us * (0.9 + 0.02 * (number % 10))
    counters = {
        "duration_us": measured_us, "tensor_active": 0.5, "dram_read_bytes": 2e6, "l2_hit": 0.7,
        "occupancy": 0.25,
    }  # fmt: skip
    return {
        **row,
        "status": "verified",
        "profile": profiles_text([kernel]),
        "measured_us": measured_us,
        "relative_error": 1e-3,
        "vendor_us": measured_us * 1.05,
        "vendor": "library",
        **({"counters": json.dumps(counters)} if number % 2 else {}),
    }


def table() -> DispatchTable:
    kernels = tuple(Config({"block_m": block, "block_n": 128, "stages": 3}) for block in (16, 64, 128))
    segments = (Segment(1, 64, 0), Segment(65, 1024, 1), Segment(1025, 8192, 2))
    sizes = (1, 16, 64, 256, 1024, 4096, 8192)
    evidence = tuple(
        Evidence(size, min(2, place // 3), 20.0 + size / 50, 19.5 + size / 51, place % 3 > 0, True)
        for place, size in enumerate(sizes)
    )
    return DispatchTable(
        operator="matmul", dtype="bfloat16", attrs={}, dims=("m", "n", "k"), fixed={"n": 4096, "k": 4096},
        vary="m", dynamic=("m",), template="matmul", template_version="v1", target="h200",
        target_fingerprint="f" * 12, arch="sm_90a", device="NVIDIA H200", protocol="default",
        software={"tilelang": "0.1.15"}, model="model-1", kernels=kernels, segments=segments,
        evidence=evidence,
    )  # fmt: skip


def card() -> dict[str, Any]:
    """The card of the model that ships."""
    return read_card(shipped())


def explanation() -> Explanation:
    return explain_profiles(
        "kernel of <others>", [replace(profile(), notes=("a note",))], load_target("h200")
    )


def timeline() -> Timeline:
    """The timeline of `profile`."""
    return profiles_timeline("kernel", (profile(),), load_target("h200"))
