from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.errors import InputError
from tilesight.kernels import operator, template_for
from tilesight.lowering.lower import Lowered, lower, with_ordered_workspaces
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


def test_how_tvm_writes_a_flag_does_not_change_the_fingerprint() -> None:
    kernel = lowered("mi300x")
    scripts = {kernel.device.script()}
    for flag in ("True", "T.bool(True)"):
        text = re.sub(r'("tirx.is_global_func": )[\w.()]*', rf"\g<1>{flag}", kernel.device.script())
        assert f'"tirx.is_global_func": {flag}' in text
        scripts.add(text)
    assert len(scripts) == 2
    found = {Lowered(None, kernel.host, SimpleNamespace(script=lambda s=s: s)).fingerprint for s in scripts}
    assert found == {kernel.fingerprint}


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


def for_gpus(what: str) -> Any:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def product(a: T.Tensor((64, 64), "float32"), b: T.Tensor((64, 64), "float32")):  # type: ignore
        with T.Kernel(1, threads=128):
            a_tile = T.alloc_shared((64, 64), "float32")
            sums = T.alloc_fragment((64, 64), "float32")
            T.copy(a, a_tile)
            T.clear(sums)
            T.gemm(a_tile, a_tile, sums)
            T.copy(sums, b)

    @T.prim_func
    def copied(a: T.Tensor((256,), "float32"), b: T.Tensor((256,), "float32")):  # type: ignore
        with T.Kernel(2, threads=128) as block:
            thread = T.get_thread_binding()
            b[block * 128 + thread] = a[block * 128 + thread]

    return product if what == "product" else copied


@pytest.mark.parametrize(
    ("what", "features"), [("product", "fragments, shared memory, T.gemm"), ("copied", "thread indices")]
)
def test_a_kernel_for_gpus_is_refused_for_a_processor_with_what_it_uses(what: str, features: str) -> None:
    with pytest.raises(InputError, match=f"it uses {features}, and is lowered for cpu. A kernel for a proc"):
        lower(for_gpus(what), load_target("cpu"))
    lower(for_gpus(what), load_target("a100"))


def test_other_errors_for_a_processor_are_tilelangs_own() -> None:
    import tilelang.language as T  # noqa: N812

    @T.prim_func
    def main(a: T.Tensor((64,), "float32")):  # type: ignore
        with T.Kernel(1):
            for i in T.serial(64):
                a[i] = T.call_extern("float32", "expf", a[i])

    lower(main, load_target("cpu"), {"tl.disable_safe_memory_legalize": True})
    with pytest.raises(Exception) as raised:  # noqa: PT011
        lower(main, load_target("cpu"), {"tl.no_such_option": True})
    assert not isinstance(raised.value, InputError)


TWO_WORKSPACES = """@T.prim_func
def kernel():
    first: T.handle("float32", "shared.dyn") = T.handle_add_byte_offset(buf.data, 0)
    workspace: T.handle("float32", "shared.dyn") = T.handle_add_byte_offset(buf.data, 1024)
    workspace_1: T.handle("float32", "shared.dyn") = T.handle_add_byte_offset(buf.data, 1536)
    row_max[0] = T.call_extern("Max", T.tvm_access_ptr(T.type_annotation("float32"), workspace_1, 0, 128, 3))
    row_sum[0] = T.call_extern("Sum", T.tvm_access_ptr(T.type_annotation("float32"), workspace, 0, 128, 3))
    row_max[0] = T.call_extern("Max", T.tvm_access_ptr(T.type_annotation("float32"), workspace_1, 0, 128, 3))
"""


def swapped(script: str) -> str:
    uses = script.split("row_max", 1)
    return uses[0] + "row_max" + re.sub(r"workspace\b|workspace_1", lambda m: OTHER[m[0]], uses[1])


OTHER = {"workspace": "workspace_1", "workspace_1": "workspace"}


def test_the_places_of_equal_workspaces_do_not_count() -> None:
    script = "# head\n" + 2 * TWO_WORKSPACES
    assert with_ordered_workspaces(script) == script
    assert swapped(TWO_WORKSPACES) != TWO_WORKSPACES
    assert with_ordered_workspaces(swapped(TWO_WORKSPACES) + TWO_WORKSPACES) == 2 * TWO_WORKSPACES
    unequal = TWO_WORKSPACES.replace("workspace, 0, 128", "workspace, 0, 256")
    assert with_ordered_workspaces(swapped(unequal)) == swapped(unequal), "sizes have an order"
