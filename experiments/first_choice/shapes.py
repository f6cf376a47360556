"""The shapes of the comparison, by operator: names of published workloads, or dimensions."""

from __future__ import annotations

from tilesight.kernels import operator
from tilesight.problem.workload import Workload

DTYPE = "bfloat16"
SHAPES: dict[str, tuple[tuple[str, str], ...]] = {
    "matmul": (
        *((name, name) for name in ("M0", "M1", "M2", "M3", "M4", "M5", "M6", "M7")),
        # few rows, as in decoding
        ("D16", "m=16,n=4096,k=4096"),
        ("D17", "m=17,n=8192,k=8192"),
        ("D64", "m=64,n=28672,k=8192"),
        # no tile divides them
        ("O1080", "m=1080,n=1000,k=1400"),
        ("O3000", "m=3000,n=3000,k=3000"),
        ("O5001", "m=5001,n=4096,k=4096"),
        ("O8191", "m=8191,n=4104,k=2056"),
        ("O2047", "m=2047,n=2047,k=2047"),  # rows begin at no whole 16 bytes: no TMA
    ),
    "flash_attention": (
        *((name, name) for name in ("FA0", "FA1", "FA2", "FA4")),
        ("FA8k", "batch=1,heads=32,seq_len=8192,head_dim=128,causal=true"),
        ("FAo777", "batch=3,heads=24,seq_len=777,head_dim=128,causal=true"),
        ("FAo1500", "batch=2,heads=16,seq_len=1500,head_dim=128,causal=false"),
        ("FAo2049", "batch=4,heads=32,seq_len=2049,head_dim=64,causal=true"),
    ),
    "rms_norm": tuple((name, name) for name in ("R0", "R2", "R5", "R6", "R7", "R8")),
}


def workloads() -> list[tuple[str, str, Workload]]:
    """(operator, name, workload) of all shapes."""
    return [
        (name, label, operator(name).workload(shape, DTYPE))
        for name, shapes in SHAPES.items()
        for label, shape in shapes
    ]
