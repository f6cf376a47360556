"""Faults of results, planted in right results of every operator and of users' own: each one is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from tests.support.rounded import right_outputs
from tests.support.sample_kernels import Product
from tilesight.decorator.check_programs import CheckPrograms
from tilesight.decorator.interface import Interface, TensorArgument
from tilesight.decorator.user_operator import CheckOptions, UserOperator
from tilesight.errors import FailureKind
from tilesight.kernels import operator
from tilesight.problem.candidate import Candidate
from tilesight.problem.operator import Operator
from tilesight.problem.space import Config, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.runner import kernel_run
from tilesight.runner.bench import Bench, BenchCase, bench_for
from tilesight.runner.compare import as_matrix
from tilesight.runner.kernel_run import KernelRun
from tilesight.target.spec import load_target

Tensors = Mapping[str, torch.Tensor]
Compute = Callable[[Workload, Tensors], dict[str, torch.Tensor]]

# one input set: faults that need a second one must be found on the second inputs
ONCE = MeasurementProtocol("default", "warm", "call", input_sets=1, seed=7)
TERMS = 16  # that a kernel without its last step leaves out


@dataclass(frozen=True)
class Subject:
    """An operator at a workload of odd sizes; `compute` gives right results, as a kernel rounds them.

    `lost` are inputs by name with the axis of their terms, of which a kernel may lose the last ones.
    """

    operator: Operator
    workload: Workload
    compute: Compute
    lost: Mapping[str, int]


def shipped(name: str, shape: str, lost: Mapping[str, int], dtype: str = "bfloat16") -> Subject:
    return Subject(operator(name), operator(name).workload(shape, dtype), right_outputs, lost)


def product_of(first: str, second: str, out: str) -> Compute:
    def compute(_: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        total = inputs[first].float() @ inputs[second].float()
        return {out: total.to(inputs[first].dtype)}

    return compute


def own_operator() -> Subject:
    """Without `rounding` and `magnitude`: the bound follows from `max_relative_error`."""
    ours = Product()
    workload = ours.workload("m=257,n=515,k=1025", "bfloat16")
    return Subject(ours, workload, product_of("a", "b", "c"), {"a": 1})


def own_function() -> Subject:
    """As `@autotune` makes it, with the usual tolerances, which one in a hundred elements may exceed."""
    kinds = {"a": (257, 1025), "b": (1025, 515), "c": (257, 515)}
    tensors = [
        TensorArgument(name, shape, "bfloat16", "bfloat16", name != "c", name == "c", name == "c")
        for name, shape in kinds.items()
    ]
    programs = CheckPrograms(reference=lambda a, b: a.float() @ b.float()).packed()
    interface = Interface(tuple(tensors), accumulates=False)
    ours = UserOperator("user.product", interface, CheckOptions(), programs, has_reference=True)
    workload = Workload("user.product", {"n": 1}, "bfloat16")
    return Subject(ours, workload, product_of("a", "b", "c"), {"a": 1})


SUBJECTS: Mapping[str, Callable[[], Subject]] = {
    "matmul": lambda: shipped("matmul", "m=257,n=515,k=1025", {"A": 1}),
    "matmul in float16": lambda: shipped("matmul", "m=257,n=515,k=1025", {"A": 1}, "float16"),
    "matmul in float32": lambda: shipped("matmul", "m=129,n=131,k=513", {"A": 1}, "float32"),
    "gemv": lambda: shipped("gemv", "n=1025,k=2049", {"x": 0}),
    "dequant_matmul": lambda: shipped("dequant_matmul", "m=65,n=257,k=1025", {"A": 1}),
    "flash_attention": lambda: shipped(
        "flash_attention", "batch=1,heads=3,seq_len=193,head_dim=40,causal=true", {"V": 1}
    ),
    "rms_norm": lambda: shipped("rms_norm", "m=129,n=1001", {}),
    "chunk_state": lambda: shipped(
        "chunk_state", "batch=2,seq_len=300,nheads=3,head_dim=20,d_state=33,chunk=64", {"dt": 3}
    ),
    "an operator of one's own": own_operator,
    "a function of one's own": own_function,
}


class Stub(KernelTemplate):
    """A template that only names its operator."""

    name = "stub"
    target_kinds = ("cpu",)
    dtypes = ("bfloat16", "float16", "float32")

    def __init__(self, ours: Operator) -> None:
        self.operator = ours

    def space(self, workload: Workload, target: Any) -> SearchSpace:
        return SearchSpace([])

    def build(self, workload: Workload, config: Config) -> Any:
        raise NotImplementedError


class FakeKernel:
    """Stands for a loaded library: computes in torch. A result of None is not written."""

    def __init__(self, subject: Subject, compute: Compute) -> None:
        self._subject, self._compute = subject, compute

    def bind(self, tensors: list[torch.Tensor], stream: int = 0, sizes: object = ()) -> Callable[[], None]:
        shapes = self._subject.operator.outputs(self._subject.workload)
        inputs, outputs = tensors[: -len(shapes)], dict(zip(shapes, tensors[-len(shapes) :], strict=True))
        names = list(self._case.sets[0].inputs)

        def call() -> None:
            found = self._compute(self._subject.workload, dict(zip(names, inputs, strict=True)))
            for name, result in found.items():
                as_matrix(outputs[name])[: len(as_matrix(result))] = as_matrix(result)

        return call

    _case: BenchCase

    def close(self) -> None:
        pass


@cache
def subject_and_case(name: str) -> tuple[Subject, BenchCase, Bench]:
    subject = SUBJECTS[name]()
    bench = Bench("cpu", bench_for(load_target("cpu"), ONCE).timer, {})
    return subject, bench.case(subject.operator, subject.workload, ONCE), bench


def run(name: str, compute: Compute, monkeypatch: pytest.MonkeyPatch) -> KernelRun:
    """A run of a kernel that computes in torch, up to where its times would be taken."""
    subject, case, bench = subject_and_case(name)
    kernel = FakeKernel(subject, compute)
    kernel._case = case
    monkeypatch.setattr(kernel_run, "LoadedKernel", lambda *_: kernel)
    candidate = Candidate(subject.workload, load_target("cpu"), Stub(subject.operator), Config({}))
    made = KernelRun(BuildResult("library", entry="call"), candidate, bench, ONCE)
    made.prepare(case)
    return made


# faults: from right results to wrong ones


def columns_of(result: torch.Tensor) -> torch.Tensor:
    """A view as a matrix; a vector is one column."""
    return result[:, None] if result.dim() == 1 else as_matrix(result)


def corner_of_zeros(matrix: torch.Tensor) -> None:
    matrix[:4, :2] = 0


def element_twelve_sigma_off(matrix: torch.Tensor) -> None:
    matrix[len(matrix) // 2, -1] += 12 * matrix.float().std()


def column_of_nan(matrix: torch.Tensor) -> None:
    matrix[: max(1, len(matrix) // 2), -1] = math.nan


def infinite_element(matrix: torch.Tensor) -> None:
    matrix[-1, -1] = math.inf


def wrong_sign_in_a_tile(matrix: torch.Tensor) -> None:
    matrix[64:128, :16].neg_()


def repeated_edge(matrix: torch.Tensor) -> None:
    """The last row is that before it: an index stops one early."""
    matrix[-1] = matrix[-2]


CHANGED = (
    corner_of_zeros,
    element_twelve_sigma_off,
    column_of_nan,
    infinite_element,
    wrong_sign_in_a_tile,
    repeated_edge,
)


@pytest.mark.parametrize("name", SUBJECTS)
def test_right_results_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, case, _ = subject_and_case(name)
    found = run(name, subject.compute, monkeypatch)
    assert found.failure is None
    assert case.second is not None
    assert found.observed["second_inputs"] == 1
    if name != "a function of one's own":
        assert 0 < found.observed["element_ratio"] < 0.8
        assert 0 < found.observed["tile_ratio"] < 0.8


@pytest.mark.parametrize("fault", CHANGED)
@pytest.mark.parametrize("name", SUBJECTS)
def test_changed_elements_are_found(
    name: str, fault: Callable[[torch.Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, _, _ = subject_and_case(name)

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        found = subject.compute(workload, inputs)
        for result in found.values():
            fault(columns_of(result))
        return found

    failure = run(name, compute, monkeypatch).failure
    assert failure is not None
    assert failure.kind is FailureKind.WRONG_RESULT
    words = "NaN or infinite" if fault in (column_of_nan, infinite_element) else "expected"
    assert words in failure.message


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_row_that_is_never_written_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _, _ = subject_and_case(name)

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        found = subject.compute(workload, inputs)
        return {name: columns_of(result)[:-1] for name, result in found.items()}

    def compute_vector(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        found = subject.compute(workload, inputs)
        for result in found.values():
            result[-1] = torch.tensor([0x7FE5], dtype=torch.int16).view(torch.bfloat16)[0]
        return found

    failure = run(name, compute_vector if name == "gemv" else compute, monkeypatch).failure
    assert failure is not None
    assert "elements were never written" in failure.message


@pytest.mark.parametrize("name", SUBJECTS)
def test_lost_terms_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step of the loop over the terms of a sum is left out."""
    subject, _, _ = subject_and_case(name)

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        if workload.operator == "rms_norm":
            x = inputs["x"].float()
            full, cut = (part.square().sum(1, keepdim=True) / x.shape[1] for part in (x, x[:, :-TERMS]))
            (right,) = subject.compute(workload, inputs).values()
            return {"y": (right.float() * ((full + 1e-6) / (cut + 1e-6)).sqrt()).to(right.dtype)}
        short = dict(inputs)
        for key, axis in subject.lost.items():
            short[key] = inputs[key].clone()
            short[key].narrow(axis, -TERMS, TERMS).zero_()
        return subject.compute(workload, short)

    failure = run(name, compute, monkeypatch).failure
    assert failure is not None
    assert "expected" in failure.message


@pytest.mark.parametrize("name", SUBJECTS)
def test_results_of_an_earlier_call_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _, _ = subject_and_case(name)
    kept: dict[str, torch.Tensor] = {}

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        if not kept:
            kept.update(subject.compute(workload, inputs))
        return kept

    failure = run(name, compute, monkeypatch).failure
    assert failure is not None
    assert failure.message.startswith("on second inputs, output")


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_kernel_that_writes_once_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _, _ = subject_and_case(name)
    calls: list[int] = []

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        calls.append(1)
        return subject.compute(workload, inputs) if len(calls) == 1 else {}

    failure = run(name, compute, monkeypatch).failure
    assert failure is not None
    assert failure.message.startswith("on second inputs, output")
    assert "elements were never written" in failure.message


@pytest.mark.parametrize("name", ["matmul", "gemv", "dequant_matmul", "chunk_state"])
def test_sums_of_whole_numbers_must_be_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place, which random inputs allow, is a wrong term with exact sums."""
    subject, case, _ = subject_and_case(name)
    assert case.second is not None
    assert case.second.is_exact

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        found = subject.compute(workload, inputs)
        for result in found.values():
            matrix = columns_of(result)
            up = torch.nextafter(matrix[5:6, :1], torch.full_like(matrix[5:6, :1], math.inf))
            if (
                inputs["A" if "A" in inputs else "x"].flatten()[0]
                == case.second.inputs["A" if "A" in inputs else "x"].flatten()[0]
            ):
                matrix[5:6, :1] = up
        return found

    failure = run(name, compute, monkeypatch).failure
    assert failure is not None
    assert "elements differ from exact sums of whole numbers; [" in failure.message
    assert "1 of " in failure.message


def test_a_message_names_the_element_and_the_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _, _ = subject_and_case("matmul")

    def compute(workload: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        found = subject.compute(workload, inputs)
        found["C"][200, 300] = 50.0
        return found

    failure = run("matmul", compute, monkeypatch).failure
    assert failure is not None
    assert failure.message.startswith(
        "output 'C': 1 of 132355 elements are off by more than their bounds, up"
    )
    assert "[200, 300] is 50, expected " in failure.message
    assert "in the tile of 64 x 64 elements that begins at [192, 256])" in failure.message


def test_an_overflow_at_another_scale_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax without its maximum is right for scores of unit variance, and infinite for larger ones."""

    def compute(_: Workload, inputs: Tensors) -> dict[str, torch.Tensor]:
        q, k, v = (inputs[name].float().transpose(1, 2) for name in ("Q", "K", "V"))
        mask = torch.ones(193, 193).tril() == 0
        scores = (q @ k.transpose(-1, -2) * 40**-0.5).masked_fill(mask, -math.inf)
        weights = scores.exp()
        total = weights.sum(-1, keepdim=True)
        out = (weights.bfloat16().float() @ v / total).transpose(1, 2)
        return {"O": out.bfloat16().contiguous()}

    failure = run("flash_attention", compute, monkeypatch).failure
    assert failure is not None
    assert failure.message.startswith("on second inputs, output 'O'")
