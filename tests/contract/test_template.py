"""What every operator and every kernel template must do, on every shipped target that it is for."""

from __future__ import annotations

import ast
import inspect
import pickle
import random
import re
import textwrap
from functools import cache

import pytest
from _pytest.mark.structures import ParameterSet

from tests.golden import lowered
from tests.support.operator_shapes import free_dims, shape
from tests.support.rounded import ROUNDED, right_outputs
from tilesight.errors import ConfigError, InputError, WorkloadError
from tilesight.kernels import default_dtype, operator, operators, template_for, templates
from tilesight.problem.operator import Operator
from tilesight.problem.space import Config, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import MAX_DIMENSION, Workload
from tilesight.runner.vendors import vendor_fault
from tilesight.target.spec import Target, load_target, target_names

ALL_TEMPLATES = {template.name: template for name in operators() for template in templates(name)}
# those of several devices are in test_group_operators.py
OF_ONE_DEVICE = [name for name in operators() if not operator(name).communicates]


def pairs(targets: list[str], full: tuple[str, ...]) -> list[ParameterSet]:
    """Each template with each of `targets` that it is for; those with a target in `full` are marked so."""
    return [
        pytest.param(
            template, target, id=f"{name}-{target.name}", marks=[pytest.mark.full] * (target.name in full)
        )
        for name, template in ALL_TEMPLATES.items()
        for target in lowered.targets_of(template, targets)
    ]


# the spaces of h100 and h200 differ in no rule
PAIRS = pairs(lowered.TARGETS, full=("a100", "mi300x"))


@cache
def space_of(template: KernelTemplate, target: Target, workload: Workload) -> SearchSpace:
    return template.space(workload, target)


@cache
def set_of(space: SearchSpace) -> frozenset[Config]:
    return frozenset(space.configs())


def named_workloads(template: KernelTemplate, target: Target) -> dict[str, Workload]:
    """Those of all published names."""
    ours, dtype = template.operator, next(d for d in template.dtypes if d in target.dtypes)
    return {name: ours.workload_on(target, name, dtype) for name in ours.named}


def different_workloads(template: KernelTemplate, target: Target) -> list[Workload]:
    """One of each choice of attributes: their spaces are enumerated, which takes long."""
    found = named_workloads(template, target)
    first = {tuple(workload.attrs.items()): name for name, workload in reversed(found.items())}
    return [found[name] for name in found if name in first.values()]


@pytest.mark.parametrize("name", OF_ONE_DEVICE)
class TestOperator:
    def test_published_names_are_canonical_workloads(self, name: str) -> None:
        ours = operator(name)
        keys = set()
        for label in ours.named:
            workload = ours.workload(label.lower())
            assert workload.name == label
            assert tuple(workload.dims) == ours.dims
            assert dict(workload.attrs) == ours.kept_attributes(ours.named[label])
            assert workload.dtype == ours.dtypes[0]
            for attribute, choices in ours.choices.items():
                assert ours.attribute(workload.attrs, attribute) in choices
            spelled = ",".join(
                f"{k}={str(v).lower()}"
                for k, v in reversed([*workload.dims.items(), *workload.attrs.items()])
            )
            assert ours.workload(spelled) == workload, "the same problem has one key, however it was asked"
            keys.add(workload.key)
        assert len(keys) == len(ours.named)

    def test_defaults_are_among_the_names(self, name: str) -> None:
        ours = operator(name)
        for dtype in ours.dtypes:
            defaults = ours.default_workloads(dtype)
            assert defaults
            assert all(workload.name in ours.named and workload.dtype == dtype for workload in defaults)

    def test_costs_are_positive_and_grow_with_the_problem(self, name: str) -> None:
        ours = operator(name)
        small = ours.workload(shape(ours, 64))
        for grown in free_dims(ours):
            large = ours.workload(shape(ours, 64, **{grown: 128}))
            assert 0 < ours.flops(small) < ours.flops(large)
            assert 0 < ours.min_bytes(small) < ours.min_bytes(large)

    @pytest.mark.parametrize("value", ["0", "-4", "1.5", "four", "", str(MAX_DIMENSION + 1)])
    def test_bad_dimensions_are_refused_by_name(self, name: str, value: str) -> None:
        ours = operator(name)
        first = free_dims(ours)[0]
        text = shape(ours, 64).replace(f"{first}=64", f"{first}={value}")
        with pytest.raises(InputError, match=re.escape(first)):
            ours.workload(text)

    def test_tensors_beyond_32_bit_indices_are_refused(self, name: str) -> None:
        ours = operator(name)
        with pytest.raises(WorkloadError, match=r"split|exceeds"):
            ours.workload(shape(ours, 10**6))

    def test_inputs_are_seeded_random_and_fit_the_reference(self, name: str) -> None:
        import torch

        ours = operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload(shape(ours, 24, 40, 56, 16, 8), dtype)
            inputs, again, other = (ours.inputs(workload, "cpu", seed) for seed in (1, 1, 2))
            known = ours.contents(workload)
            assert set(known) <= set(inputs)
            for key, tensor in inputs.items():
                assert tensor.is_contiguous()
                assert torch.equal(tensor, again[key])
                assert str(tensor.dtype) == f"torch.{ours.dtype_of(key, workload)}"
                if key in known:
                    assert torch.equal(tensor, torch.from_numpy(known[key]).to(tensor.dtype))
                else:
                    assert not torch.equal(tensor.float(), other[key].float())
                if tensor.is_floating_point():  # packed weights are bytes
                    assert 0.01 < tensor.float().std() < 200
            assert any(str(tensor.dtype) == f"torch.{dtype}" for tensor in inputs.values())
            outputs = ours.reference(workload, inputs)
            assert {key: tuple(t.shape) for key, t in outputs.items()} == ours.outputs(workload)
            for key, tensor in outputs.items():
                assert tensor.isfinite().all()
                assert tensor.float().std() > 0.01
                if tensor.is_floating_point():
                    assert tensor.dtype in (torch.float32, torch.float64)
                else:  # indices
                    assert str(tensor.dtype) == f"torch.{ours.dtype_of(key, workload)}"

    def test_magnitudes_are_roots_of_sums_of_squared_terms(self, name: str) -> None:
        ours = operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload(shape(ours, 24, 40, 56, 16, 8), dtype)
            inputs = ours.inputs(workload, "cpu", 1)
            rounding, reference = ours.rounding(workload), ours.reference(workload, inputs)
            assert rounding is not None
            for key, magnitude in ours.magnitude(workload, inputs).items():
                assert magnitude.shape == reference[key].shape
                # Cauchy and Schwarz; magnitudes have a few digits
                assert (reference[key].abs() <= 1.02 * rounding.terms**0.5 * magnitude).all()
                # terms of random signs
                assert 0.7 < reference[key].norm() / magnitude.norm() < 1.4

    def test_second_inputs_are_others_and_exact_where_it_says_so(self, name: str) -> None:
        import torch

        ours = operator(name)
        for dtype in ours.dtypes:
            workload = ours.workload(shape(ours, 24, 40, 57, 16, 8), dtype)
            first, second = ours.inputs(workload, "cpu", 1), ours.second_inputs(workload, "cpu", 1)
            assert second is not None
            again = ours.second_inputs(workload, "cpu", 1)
            assert again is not None
            for key, tensor in first.items():
                other = second.tensors[key]
                assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
                assert other.is_contiguous()
                assert torch.equal(other, again.tensors[key])
            assert any(not torch.equal(first[key], second.tensors[key]) for key in first)
            reference = ours.reference(workload, second.tensors)
            assert all(tensor.isfinite().all() for tensor in reference.values())
            if second.is_exact and name in ROUNDED:
                rounded = {
                    key: tensor.to(getattr(torch, ours.dtype_of(key, workload)))
                    for key, tensor in reference.items()
                }
                for seed, cut in ((1, 0), (2, 8)):
                    found = right_outputs(workload, second.tensors, seed, cut)
                    assert all(torch.equal(found[key], rounded[key]) for key in rounded)

    def test_vendor_calls_agree_with_the_reference(self, name: str) -> None:
        import torch

        ours = operator(name)
        workload = ours.workload(shape(ours, 32, 32, 64, 32, 16), ours.dtypes[0])
        inputs = ours.inputs(workload, "cpu", 3)
        reference = ours.reference(workload, inputs)
        calls = ours.vendor(workload, inputs)
        assert calls
        for call in calls.values():
            result = call()
            out = result[0] if isinstance(result, tuple | list) else result
            assert isinstance(out, torch.Tensor)
            assert not vendor_fault(ours, workload, result, reference)
            first = next(iter(reference.values()))
            if out.shape != first.shape:
                out = out.transpose(1, 2)
            assert (out.float() - first).norm() / first.norm() < 2 * ours.max_relative_error(workload)


@pytest.mark.parametrize(("template", "target"), PAIRS)
class TestTemplate:
    def test_every_named_workload_has_legal_configs_and_a_default(
        self, template: KernelTemplate, target: Target
    ) -> None:
        enumerated = different_workloads(template, target)
        for workload in named_workloads(template, target).values():
            space = space_of(template, target, workload)
            default = template.default_config(workload, target)
            assert default in space, workload.label
            if workload not in enumerated:
                continue
            census = space.census()
            assert census.legal > 10, workload.label
            assert census.legal + sum(census.rejected.values()) == census.size
            assert default in set_of(space), (
                workload.label
            )  # without later parameters that have their default

    @pytest.mark.parametrize("size", [1, 33, 1000])
    def test_odd_and_tiny_workloads_have_legal_configs_and_a_default(
        self, template: KernelTemplate, target: Target, size: int
    ) -> None:
        ours = template.operator
        size = -(-min(size, 200) // target.world) * target.world  # ranks have equal parts
        dtype = next(d for d in template.dtypes if d in target.dtypes)
        workload = ours.workload_on(target, shape(ours, size), dtype)
        assert template.default_config(workload, target) in space_of(template, target, workload)

    def test_constraints_depend_only_on_the_values_they_read(
        self, template: KernelTemplate, target: Target
    ) -> None:
        """Enumeration evaluates a constraint once for all configs with the same values of what it reads."""
        for workload in different_workloads(template, target)[-1:]:
            space = space_of(template, target, workload)
            draw = random.Random(3)
            for _ in range(300):
                config = space.config({p.name: draw.choice(p.values) for p in space.parameters})
                assert (config in set_of(space)) == (config in space), str(config)

    def test_parameters_are_typed_ordered_and_explained(
        self, template: KernelTemplate, target: Target
    ) -> None:
        workload = different_workloads(template, target)[0]
        for parameter in space_of(template, target, workload).parameters:
            assert parameter.meaning
            assert len({type(v) for v in parameter.values}) == 1
            assert len(set(parameter.values)) == len(parameter.values)
            if isinstance(parameter.values[0], int):
                assert list(parameter.values) == sorted(parameter.values)

    def test_reasons_name_numbers_and_a_way_out_that_exists(
        self, template: KernelTemplate, target: Target
    ) -> None:
        workload = different_workloads(template, target)[0]
        space = space_of(template, target, workload)
        default = template.default_config(workload, target)
        assert default is not None
        broken = 0
        for parameter in space.parameters:
            for value in parameter.values:
                config = space.config({**default, parameter.name: value})
                for violation in space.violations(config):
                    broken += 1
                    assert re.search(r"\d", violation.reason), violation.reason
                    assert re.search(
                        r": (take|lower|cover|nearest)|; (take|nearest|cover)|: \d+ covers it",
                        violation.reason,
                    ), violation.reason
                if space.violations(config):
                    with pytest.raises(ConfigError, match="Nearest legal"):
                        space.check(config)
                    nearest = space.nearest(config, 1)[0]
                    assert nearest in space
                    changed = sum(p.of(nearest) != p.of(config) for p in space.parameters)
                    assert changed <= 2, "a legal config is near"
        assert broken, "the sample met no constraint"

    def test_version_is_stable_and_template_travels_between_processes(
        self, template: KernelTemplate, target: Target
    ) -> None:
        copy = pickle.loads(pickle.dumps(template))
        assert copy.version == template.version
        assert re.fullmatch("[0-9a-f]{12}", template.version)
        assert template_for(template.operator.name, target, template.dtypes[0]).name == template.name


@pytest.mark.parametrize("name", ALL_TEMPLATES)
def test_kernel_code_uses_nothing_of_the_search_space(name: str) -> None:
    """A template's version says which measurements hold, and it does not see the module of the space."""
    build = type(ALL_TEMPLATES[name]).build
    tree = ast.parse(textwrap.dedent(inspect.getsource(build)))
    assert "search_space" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize(("template", "target"), PAIRS)
def test_a_legal_config_lowers(template: KernelTemplate, target: Target) -> None:
    lowered.check_unless_known(
        lowered.static_case(template, target), lowered.static_candidate(template, target)
    )


def test_default_dtypes_have_templates() -> None:
    for target in map(load_target, target_names()):
        for name in operators():
            if any(target.kind in template.target_kinds for template in templates(name)):
                dtype = default_dtype(name, target)
                assert dtype in template_for(name, target, dtype).dtypes


def test_operators_declare_all_their_tensors() -> None:
    for ours in map(operator, operators()):
        assert isinstance(ours, Operator)
        assert set(ours.default_names) <= set(ours.named)
        assert not set(ours.dims) & set(ours.attrs)
