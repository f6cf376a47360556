"""A made-up dataset of three kinds of kernels: measured times are analytical times with known factors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.training.measured import MeasuredRow, measured_rows
from tilesight.profile.codec import profiles_text
from tilesight.profile.values import (
    Access,
    KernelProfile,
    MatrixWork,
    Phase,
    Role,
    Space,
    Tensor,
    Trips,
    Work,
)
from tilesight.records.dataset import Dataset
from tilesight.target.spec import load_target

H200 = load_target("h200")
OPERATORS = ("copying", "multiplying", "summing")
DTYPES = {0: "float16", 1: "bfloat16", 2: "float16", 3: "bfloat16"}


def kernel(operator: str, size: int, block: int, syncs: int = 0, arch: str = "sm_90a") -> KernelProfile:
    """`size` elements in tiles of `block` for each of a block's 128 threads."""
    blocks = max(1, size // (128 * block))
    moved = 128.0 * block * 2
    load = Access(
        Space.GLOBAL,
        "x",
        False,
        "ld",
        moved,
        moved / 32,
        moved / 512,
        16,
        axes=frozenset("x"),
        footprint_bytes=moved,
    )
    store = Access(
        Space.GLOBAL,
        "y",
        True,
        "st",
        moved,
        moved / 32,
        moved / 512,
        16,
        axes=frozenset("x"),
        footprint_bytes=moved,
    )
    matrix = (MatrixWork("mma.m16n8k16", 40.0 * block, 4096.0, warps=1),) if operator == "multiplying" else ()
    vector = 400.0 * block if operator == "summing" else 0.0
    work = Work(matrix=matrix, accesses=(load, store), vector_ops=vector * 128, block_syncs=float(syncs))
    role = Role("all", 128, (Phase(Trips((4.0,)), work, is_loop=True),), local_registers=float(block))
    tensors = (Tensor("x", size * 8, 2), Tensor("y", size * 8, 2))
    return KernelProfile("cuda", arch, (blocks, 1, 1), 128, 1, 1024 * block, (role,), tensors)


def hidden_factor(syncs: int) -> float:
    """A factor that the analytical model lacks: barriers cost more than it predicts."""
    return 1.1 + 0.12 * syncs


def dataset(operators: Sequence[str] = OPERATORS, shapes: int = 4) -> Dataset:
    analytical = AnalyticalModel()
    rows: list[dict[str, Any]] = []
    for operator in operators:
        for shape in range(shapes):
            size = 1 << (18 + 2 * shape)
            for block in (2, 4, 8, 16):
                for syncs in range(6):
                    profile = kernel(operator, size, block, syncs)
                    noise = 1 + 0.01 * math.sin(37.0 * len(rows))
                    measured = analytical.predict([profile], H200).latency_us * hidden_factor(syncs) * noise
                    rows.append(
                        {
                            "operator": operator,
                            "workload": f"{operator}:n={size}:{DTYPES[shape]}",
                            "shape": f"N{shape}",
                            "dims": json.dumps({"n": size}),
                            "dtype": DTYPES[shape],
                            "attrs": "{}",
                            "template": operator,
                            "template_version": "1",
                            "target": "h200",
                            "config": json.dumps(
                                {"block": block, "syncs": syncs, "order": "row" if syncs % 2 else "column"}
                            ),
                            "flops": 1e6,
                            "min_bytes": size * 4.0,
                            "status": "verified",
                            "fingerprint": f"{operator}{shape}{block}{syncs}",
                            "profile": profiles_text([profile]),
                            "measured_us": measured,
                            "relative_error": 0.0,
                            "run": "made",
                        }
                    )
    return Dataset.of(rows, {"made": {"environment": {"device": "NVIDIA H200"}, "date": "2026-11-21"}})


def rows(operators: Sequence[str] = OPERATORS, shapes: int = 4) -> list[MeasuredRow]:
    return measured_rows(dataset(operators, shapes))


# networks need many steps, so most tests of trained models do without them
FAST: dict[str, Any] = {
    "rounds": 40,
    "network_share": 0.0,
    "members": 2,
    "learning_rate": 0.15,
    "min_child_weight": 1.0,
    "l2": 1.0,
    "feature_share": 0.5,
}
