from __future__ import annotations

import pytest

from tilesight.kernels import operator, template_for
from tilesight.lowering.lower import Lowered, lower
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

BASE = {
    "block_m": 64,
    "block_n": 64,
    "block_k": 32,
    "num_stages": 2,
    "threads": 128,
    "policy": "square",
    "epilogue": "shared",
    "swizzle": 0,
}


def lowered(target: str, shape: str = "m=256,n=256,k=256", **changes: int | str) -> Lowered:
    chip = load_target(target)
    template = template_for("matmul", chip, "bfloat16")
    return lower(template.build(operator("matmul").workload(shape), Config({**BASE, **changes})), chip)


@pytest.mark.parametrize(
    ("target", "calls"),
    [("h100", ("tma_load", "ptx_wgmma")), ("a100", ("cp_async", "ptx_mma")), ("mi300x", ("mfma",))],
)
def test_device_ir_is_that_of_the_target(target: str, calls: tuple[str, ...]) -> None:
    kernel = lowered(target)
    script = kernel.device.script()
    assert all(call in script for call in calls)
    assert "T.gemm" in kernel.traced.script() or "tileop" in kernel.traced.script()
    assert len(kernel.host.functions) == 1


def test_same_kernel_same_fingerprint() -> None:
    assert lowered("mi300x").fingerprint == lowered("mi300x", num_stages=4).fingerprint, (
        "gfx942 knows no pipeline"
    )
    assert lowered("h100").fingerprint == lowered("h100").fingerprint


def test_other_kernel_other_fingerprint() -> None:
    base = lowered("h100")
    assert (
        len(
            {
                base.fingerprint,
                *(
                    lowered("h100", **c).fingerprint
                    for c in ({"num_stages": 3}, {"swizzle": 4}, {"block_k": 64})
                ),
            }
        )
        == 4
    )


def test_fingerprint_sees_what_only_the_host_part_shows() -> None:
    """Bounds of tensors stand in TMA descriptors, which the host makes: the device IR is the same."""
    whole, cut = lowered("h100"), lowered("h100", "m=256,n=248,k=256")
    assert whole.device.script() == cut.device.script()
    assert whole.fingerprint != cut.fingerprint


def test_names_do_not_matter() -> None:
    import tilelang.language as T  # noqa: N812

    def first() -> object:
        @T.prim_func
        def one(x: T.Tensor((256,), "float32"), y: T.Tensor((256,), "float32")):  # type: ignore[no-untyped-def, valid-type]
            with T.Kernel(2, threads=128) as b:
                for i in T.Parallel(128):
                    y[b * 128 + i] = x[b * 128 + i] + 1.0

        return one

    def second() -> object:
        @T.prim_func
        def one(source: T.Tensor((256,), "float32"), sum: T.Tensor((256,), "float32")):  # type: ignore[no-untyped-def, valid-type]
            with T.Kernel(2, threads=128) as block:
                for lane in T.Parallel(128):
                    sum[block * 128 + lane] = source[block * 128 + lane] + 1.0

        return one

    h100 = load_target("h100")
    assert lower(first(), h100).fingerprint == lower(second(), h100).fingerprint


def test_what_tilelang_refuses_raises() -> None:
    with pytest.raises(Exception, match="warps"):
        lowered("h100", block_m=64, threads=384)
