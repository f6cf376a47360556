"""Interfaces of all operators: their sources compile, and their formulas are what operators compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.exports import WARNINGS, compile_program, compiler
from tilesight import kernels
from tilesight.dispatch.problem import make_problem
from tilesight.dispatch.select.choice import Choice, ChoiceSource
from tilesight.dispatch.table.dispatch_table import Segment
from tilesight.errors import InputError
from tilesight.exporter.c_header import header, rust_bindings
from tilesight.exporter.c_library import library_source
from tilesight.exporter.formula import Formula, product, size, text_of, value_at
from tilesight.exporter.interface import RESERVED, read_interface
from tilesight.exporter.kernel_set import KernelSet, SizeLimits
from tilesight.exporter.python_module import python_module
from tilesight.exporter.torch_operator import torch_operator
from tilesight.problem.workload import Workload
from tilesight.target.spec import load_target

# a dispatcher takes no others
ALONE = [n for n in kernels.operators() if kernels.operator(n).axes and not kernels.operator(n).communicates]


def test_formulas_are_numbers_once_their_sizes_are_known() -> None:
    m = size("m")
    forms: list[Any] = [
        m + 3,
        3 + m,
        m - 3,
        200 - m,
        4 * m,
        m * m,
        m // 8,
        -(-m // 8),
        m % 8,
        (m + 7) // 8 * 8,
        -m,
    ]
    functions: list[Any] = [
        *(lambda m: m + 3, lambda m: 3 + m, lambda m: m - 3, lambda m: 200 - m, lambda m: 4 * m),
        *(lambda m: m * m, lambda m: m // 8, lambda m: -(-m // 8), lambda m: m % 8),
        *(lambda m: (m + 7) // 8 * 8, lambda m: -m),
    ]
    for form, function in zip(forms, functions, strict=True):
        for value in (1, 7, 8, 9, 100):
            assert value_at(form, {"m": value}) == function(value)
            assert eval(text_of(form, "//"), {"m": value}) == function(value)


def test_a_product_multiplies_its_numbers_beforehand() -> None:
    m = size("m")
    assert text_of(product([2, m, 3])) == "(m * 6)"
    assert product([2, 5]) == 10
    assert value_at(product([m, m + 1, 2]), {"m": 3}) == 24
    assert isinstance(product([m]), Formula)


def kernel_set(name: str) -> KernelSet:
    """The default config of a published shape, with the last dimension that can be dynamic."""
    operator, target = kernels.operator(name), load_target("h200")
    template = kernels.template_for(name, target, kernels.default_dtype(name, target))
    for workload in operator.default_workloads_on(target, template.dtypes[0]):
        config = template.default_config(workload, target)
        if config is not None:
            break
    else:
        pytest.skip(f"{name} has no default config")
    for dim in reversed(template.dynamic_dims):
        fixed = {d: s for d, s in workload.dims.items() if d != dim}
        try:
            problem = make_problem(template, target, workload.dtype, workload.attrs, fixed, (dim,))
        except InputError:  # it is in no input
            continue
        break
    last = workload.dims[dim]
    choice = Choice(workload, config, ChoiceSource.GIVEN, "", dynamic=(dim,))
    return KernelSet(
        "made", problem, (SizeLimits(dim, last, last + 1),), (choice,), (Segment(last, last + 1, 0),)
    )


@pytest.mark.parametrize("name", ALONE)
def test_sources_of_every_operator_compile(name: str, tmp_path: Path) -> None:
    made = kernel_set(name)
    interface = read_interface(made)
    files = [("kernels/made_0.so", "0" * 64)]
    (tmp_path / "made.h").write_text(header(made, interface), encoding="utf-8")
    source = library_source(made, interface, files, ["nvcc 13.0.88"], any_card=False)
    (tmp_path / "made.c").write_text(source, encoding="utf-8")
    compile_program([compiler("gcc"), "-std=c11", "-O2", *WARNINGS, "-c", "made.c"], tmp_path)
    compile(python_module(made, interface, dict(files)), "made.py", "exec")
    assert torch_operator(made, interface).count("{") > 20
    assert "pub struct made_args" in rust_bindings(made, interface)
    fields = [*interface.sizes, *(tensor.field for tensor in interface.tensors)]
    assert len(set(fields)) == len(fields)
    assert not set(fields) & RESERVED


def test_the_program_of_the_page_compiles(tmp_path: Path) -> None:
    made = replace(kernel_set("matmul"), name="matmul")
    (tmp_path / "matmul.h").write_text(header(made, read_interface(made)), encoding="utf-8")
    page = (Path(__file__).resolve().parents[3] / "docs" / "export.md").read_text(encoding="utf-8")
    program = page.partition("```c\n")[2].partition("```")[0]
    assert "matmul_call" in program
    (tmp_path / "program.c").write_text(program, encoding="utf-8")
    compile_program([compiler("gcc"), "-std=c11", *WARNINGS, "-fsyntax-only", "program.c"], tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_shapes_and_sizes_are_those_of_the_operator(name: str) -> None:
    made = kernel_set(name)
    interface, operator = read_interface(made), made.problem.operator
    workload = made.kernels[0].workload
    [dim] = interface.sizes
    for value in (workload.dims[dim], workload.dims[dim] + 1):
        asked = Workload(operator.name, {**workload.dims, dim: value}, workload.dtype, workload.attrs)
        shapes = {t.name: tuple(value_at(e, {dim: value}) for e in t.shape) for t in interface.tensors}
        outputs = operator.outputs(asked)
        assert {t.name: shapes[t.name] for t in interface.outputs} == {
            n: tuple(s) for n, s in outputs.items()
        }
    [source] = interface.sources
    [tensor] = [t for t in interface.inputs if t.field == source.field]
    extent = value_at(tensor.shape[source.axis], {dim: 4096})
    assert (extent - source.more) * source.part == 4096


def test_scratch_memory_follows_the_size() -> None:
    from tests.support.exports import matmul_table
    from tilesight.exporter.table_source import kernels_of_table

    table = matmul_table(
        "h200", "bfloat16", {"n": 256, "k": 1024}, [{}, {"split_k": 2}], [(1, 64, 1), (65, 90, 0)]
    )
    interface = read_interface(kernels_of_table(table, "made", None))
    assert interface.scratch[0] == ()
    [partial] = interface.scratch[1]
    # whole tiles of 16 rows
    assert [value_at(partial, {"m": m}) for m in (7, 65)] == [2 * 16 * 256 * 4, 2 * 80 * 256 * 4]
