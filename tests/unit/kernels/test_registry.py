from __future__ import annotations

import pytest

from tilesight.errors import InputError, UnknownNameError
from tilesight.kernels import default_dtype, operator, operators, template_for, templates
from tilesight.target.spec import load_target


def test_operators_are_found_by_their_modules() -> None:
    assert {"chunk_state", "dequant_matmul", "flash_attention", "gemv", "matmul", "rms_norm"} <= set(
        operators()
    )
    assert [t.name for t in templates("matmul")] == ["matmul", "matmul_cpu"]


@pytest.mark.parametrize("name", ["flash_attention", "flash-attention", "Flash-Attention"])
def test_dashes_and_case_do_not_matter(name: str) -> None:
    assert operator(name).name == "flash_attention"


def test_unknown_kernel_offers_near_names() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown kernel './mine.py'; known: .* in TILESIGHT_KERNELS, or decorate it"
    ):
        operator("./mine.py")
    with pytest.raises(UnknownNameError, match="unknown kernel 'matmull'; did you mean matmul"):
        operator("matmull")
    with pytest.raises(UnknownNameError, match=f"known: {', '.join(operators())}.*in TILESIGHT_KERNELS"):
        operator("zzz")


@pytest.mark.parametrize(
    ("target", "dtype", "template"),
    [("h100", "bfloat16", "matmul"), ("mi300x", "float16", "matmul"), ("cpu", "float32", "matmul_cpu")],
)
def test_template_depends_on_kind_of_target_and_dtype(target: str, dtype: str, template: str) -> None:
    assert template_for("matmul", load_target(target), dtype).name == template


def test_no_kernel_for_that_kind_of_target() -> None:
    for call in (
        lambda: template_for("flash-attention", load_target("cpu"), "float32"),
        lambda: default_dtype("flash_attention", load_target("cpu")),
    ):
        with pytest.raises(
            InputError, match=r"flash_attention has no kernel for target 'cpu'.*kind cuda and hip"
        ):
            call()


def test_no_kernel_in_that_dtype() -> None:
    with pytest.raises(
        InputError,
        match="matmul has no bfloat16 kernel for target 'cpu'; "
        "on this target it takes float32: --dtype float32",
    ):
        template_for("matmul", load_target("cpu"), "bfloat16")
    with pytest.raises(InputError, match="takes bfloat16, float16, int8: --dtype bfloat16"):
        template_for("matmul", load_target("a100"), "float32")


def test_default_dtype_follows_the_target() -> None:
    assert default_dtype("matmul", load_target("h100")) == "bfloat16"
    assert default_dtype("matmul", load_target("cpu")) == "float32"


def test_a_kind_of_target_without_a_kernel_has_a_reason() -> None:
    message = r"'mi300x', which is of kind hip \(its results are float8_e4m3fn.*\); it runs on .* kind cuda"
    with pytest.raises(InputError, match=message):
        template_for("quantize", load_target("mi300x"), "bfloat16")
    with pytest.raises(
        InputError, match=r"kind hip \(its ranks wait for each other by instructions of PTX\);"
    ):
        template_for("matmul_all_reduce", load_target("mi300x"), "bfloat16")
    for name in operators():
        for template in templates(name):
            assert not template.kind_reasons.keys() & set(template.target_kinds), name
