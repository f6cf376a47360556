"""A dispatcher as an operator of torch, and under torch.compile."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.unit.dispatch.harness import make_harness
from tilesight.dispatch import register
from tilesight.errors import InputError


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def test_the_operator_computes_and_passes_the_opcheck_of_torch(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    x = torch.randn(20, 4)
    assert torch.equal(made.d.op(x), 3 * x)
    result = torch.library.opcheck(made.d.op, (x,))
    assert set(result.values()) == {"SUCCESS"}
    out = torch.empty(20, 4)
    result = torch.library.opcheck(made.d._op_out, (x, out))
    assert set(result.values()) == {"SUCCESS"}
    made.d.close()


def test_compiled_code_has_one_graph_for_all_sizes(tmp_path: Path) -> None:
    made = make_harness(tmp_path, dynamic=("m",))
    graphs: list[torch.fx.GraphModule] = []

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: made.d(x + 1) * 2, fullgraph=True, backend=count, dynamic=True)
    for m in (20, 21, 300):
        x = torch.randn(m, 4)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), 2 * (3 * (x + 1)))
    assert len(graphs) == 1  # one graph for every m
    made.d.close()


def test_compiled_code_may_pass_memory_for_the_output(tmp_path: Path) -> None:
    made = make_harness(tmp_path)

    def both(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        made.d(x, out=out)
        return out + made.d(x)

    x, out = torch.randn(20, 4), torch.empty(20, 4)
    found = torch.compile(both, fullgraph=True, backend="aot_eager")(x, out)
    assert torch.equal(out, 3 * x)
    assert torch.equal(found, 6 * x)
    made.d.close()


def test_fake_tensors_get_fake_outputs(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.d(torch.randn(20, 4))  # a call that is ready must not be taken for one of fake tensors
    with FakeTensorMode():
        found = made.d(torch.empty(20, 4))
        assert (found.shape, found.dtype) == ((20, 4), torch.float32)
        with pytest.raises(InputError, match=r"x.shape\[1\]=5 must be n=4"):
            made.d(torch.empty(20, 5))
        with pytest.raises(InputError, match="x is float64 and must be float32"):
            made.d(torch.empty(20, 4, dtype=torch.float64))
    assert len(made.executor.built) == 1
    made.d.close()


def test_a_registered_name_works_until_the_dispatcher_is_closed(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    op = register("tilesight_test::tripled", made.d)
    x = torch.randn(20, 4)
    assert torch.equal(op(x), 3 * x)
    assert torch.equal(torch.ops.tilesight_test.tripled(x), 3 * x)
    with pytest.raises(InputError, match="registered already"):
        made.d.register("tilesight_test::tripled")
    for bad in ("tripled", "a::b::c", "1::x", "a::"):
        with pytest.raises(InputError, match="must be of the form namespace::name"):
            made.d.register(bad)
    made.d.close()
    again = make_harness(tmp_path)
    assert torch.equal(again.d.register("tilesight_test::tripled")(x), 3 * x)
    again.d.close()


def test_two_dispatchers_of_one_problem_have_different_names(tmp_path: Path) -> None:
    one, two = make_harness(tmp_path), make_harness(tmp_path)
    assert one.d.op.name() != two.d.op.name()
    x = torch.randn(20, 4)
    assert torch.equal(two.d.op(x), 3 * x)
    lost = two.d.op
    two.d.close()
    del two
    gc.collect()
    with pytest.raises(InputError, match=r"the dispatcher of operator 'tilesight::.*' is closed or gone"):
        lost(x)
    again = make_harness(tmp_path)  # of the same problem: it takes the name that is free
    assert again.d.op is lost
    assert torch.equal(lost(x), 3 * x)
    again.d.close()
    with pytest.raises(InputError, match="closed or gone"):
        lost(x)
    one.d.close()


def test_the_name_of_another_problem_is_not_taken_over(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    op, x = made.d.register("tilesight_test::of_one_problem"), torch.randn(20, 4)
    made.d.close()
    other = make_harness(tmp_path, attrs={"factor": 5})
    with pytest.raises(InputError, match="registered already"):
        other.d.register("tilesight_test::of_one_problem")
    with pytest.raises(InputError, match="closed or gone"):
        op(x)
    other.d.close()


def test_a_name_that_torch_refuses_is_an_input_error(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.d.register("tilesight_test::up_out")
    for _ in range(2):
        with pytest.raises(InputError, match="registered already"):
            made.d.register("tilesight_test::up")
        with pytest.raises(InputError, match=r"'prim::up' cannot be registered: .*; take another name"):
            made.d.register("prim::up")
    made.d.close()


def test_parameters_are_accepted_as_tensors(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    weight = torch.nn.Parameter(torch.randn(20, 4))
    with pytest.warns(UserWarning, match="kernels have no derivative"):
        assert torch.equal(made.d(weight), 3 * weight)
    assert not made.d(weight).requires_grad
    made.d.close()


def test_exported_with_a_symbolic_size(tmp_path: Path) -> None:
    made = make_harness(tmp_path, dynamic=("m",))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = made.d(x) + 1
            return found

    sizes = ({0: torch.export.Dim("m", min=2, max=4000)},)
    exported = torch.export.export(Model(), (torch.randn(6, 4),), dynamic_shapes=sizes)
    x = torch.randn(9, 4)
    assert torch.equal(exported.module()(x), 3 * x + 1)
    made.d.close()
