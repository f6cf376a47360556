"""Our account of TileLang's division of tiles over warps, held against TileLang's own answer."""

from __future__ import annotations

from typing import Any

import pytest

from tilesight.search_spaces.matrix_unit import POLICIES, launch, matrix_unit
from tilesight.target.spec import load_target

INSTRUCTIONS = {"wgmma": "cuda.wgmma", "mma": "cuda.mma", "MFMA": "rocm.mfma"}


@pytest.mark.parametrize("name", ["h100", "a100", "mi300x"])
def test_policies_divide_as_in_tilelang(name: str) -> None:
    import tilelang  # noqa: F401
    from tilelang import _ffi_api
    from tilelang.tileop.base import GemmWarpPolicy
    from tvm.ir import make_node
    from tvm.target import Target as TvmTarget

    target = load_target(name)
    tvm_target: Any = TvmTarget(target.tvm_target())
    known = {
        "square": GemmWarpPolicy.Square,
        "full_row": GemmWarpPolicy.FullRow,
        "full_col": GemmWarpPolicy.FullCol,
    }
    sizes = (16, 32, 64, 128, 256) if name == "mi300x" else (16, 32, 64, 96, 128, 192, 256)
    compared = 0
    for rows in sizes:
        for cols in sizes:
            for threads in (64, 128, 256, 384, 512):
                unit = matrix_unit(target, rows, threads)
                for policy in POLICIES:
                    ours = unit.split(policy, rows, cols, threads)
                    node = make_node("tl.GemmWarpPolicy", policy_type=int(known[policy]), m_warp=0, n_warp=0)
                    if ours is None:
                        continue
                    _ffi_api.GemmWarpPolicyComputeWarpPartition(
                        node, rows, cols, threads, tvm_target, INSTRUCTIONS[unit.name]
                    )
                    assert (node.m_warp, node.n_warp) == ours, (rows, cols, threads, policy)
                    compared += 1
    assert compared > 200


def test_hopper_uses_wgmma_only_with_whole_warpgroups_and_64_rows() -> None:
    h100 = load_target("h100")
    assert matrix_unit(h100, 64, 128).name == "wgmma"
    assert matrix_unit(h100, 32, 128).name == "mma"
    assert matrix_unit(h100, 64, 64).name == "mma"
    assert matrix_unit(load_target("a100"), 64, 128).name == "mma"


def test_launch_counts_the_producer_and_its_registers() -> None:
    h100, a100 = load_target("h100"), load_target("a100")
    assert launch(h100, 256, bulk_copies=True).threads == 384
    assert [launch(h100, t, True).registers for t in (128, 256, 384, 512)] == [240, 240, 160, 96]
    assert launch(h100, 256, bulk_copies=False).threads == 256
    assert [launch(a100, t, True).registers for t in (128, 256, 512)] == [255, 255, 128]
