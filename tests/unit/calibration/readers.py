"""Which figures of a target the analytical model reads: those that move a prediction when they change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
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
from tilesight.target.spec import Target

MANY = 1e6  # operations of one iteration: nothing else matters then
LOAD = Access(
    Space.GLOBAL, "x", False, "ld", 65536, 2048, 128, 16, axes=frozenset("x"), footprint_bytes=65536
)
SHARED = Access(Space.SHARED, "s", False, "ld", MANY, MANY / 128, MANY / 512, 16)
WORKS = (
    Work(vector_ops=MANY),
    Work(integer_ops=MANY),
    Work(convert_ops=MANY),
    Work(special_ops=MANY),
    Work(block_syncs=1000),
    Work(accesses=(LOAD,)),
    Work(accesses=(SHARED,)),
    Work(matrix=(MatrixWork("mma.m16n8k16.bf16", 1, 4096),), vector_ops=MANY),
    Work(matrix=(MatrixWork("mma.m16n8k16.bf16", 64000, 4096),)),
    Work(matrix=(MatrixWork("wgmma.m64n256k16.bf16", 2000, 2 * 64 * 256 * 16, warps=4),)),
)


def _kernel(work: Work) -> KernelProfile:
    role = Role("all", 256, (Phase(Trips((16.0,)), work, is_loop=True),), local_registers=32.0)
    return KernelProfile("cuda", "sm_90a", (1320, 1, 1), 256, 1, 1024, (role,), (Tensor("x", 1 << 30, 2),))


KERNELS = tuple(map(_kernel, WORKS))


def figures_read(target: Target) -> Iterator[str]:
    model = AnalyticalModel()
    before = [model.predict([kernel], target).latency_us for kernel in KERNELS]
    for path, figure in target.figures.items():
        changed = replace(target, figures={**target.figures, path: replace(figure, value=0.5 * figure.value)})
        try:
            if [model.predict([kernel], changed).latency_us for kernel in KERNELS] != before:
                yield path
        except ValueError:  # no longer fits: read all the same
            yield path
