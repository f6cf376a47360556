"""Problems of dispatchers: every shipped operator's dimensions are read from its tensors."""

from __future__ import annotations

import pytest

from tests.support.operator_shapes import shape
from tilesight.dispatch.problem import make_problem
from tilesight.kernels import operator, operators, template_for
from tilesight.problem.group_operator import WORLD
from tilesight.target.spec import load_target


@pytest.mark.parametrize("name", operators())
def test_a_shape_is_read_from_the_tensors_of_each_operator(name: str) -> None:
    ours = operator(name)
    target = load_target("h200x2" if ours.communicates else "h200")
    workload = ours.workload_on(target, shape(ours, 64))
    template = template_for(name, target, workload.dtype)
    inputs = ours.inputs(workload, "cpu", 1)
    world = {WORLD: target.world} if ours.communicates else {}
    problem = make_problem(template, target, workload.dtype, workload.attrs, world, ())
    assert problem.inputs == tuple(inputs)
    assert problem.outputs == tuple(ours.outputs(workload))
    dims = problem.read_dims({one: tuple(tensor.shape) for one, tensor in inputs.items()})
    assert problem.workload(problem.key_of(dims)) == workload
    assert problem.output_shapes(dims) == {one: tuple(of) for one, of in ours.outputs(workload).items()}
