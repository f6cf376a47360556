"""Calls of a dispatcher, whose kernels are built by the first call of each shape."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.unit.dispatch.harness import config, make_harness
from tilesight.builder.loaded_kernel import LaunchError
from tilesight.dispatch.select.choice import ChoiceSource
from tilesight.errors import InputError, NoCandidateError


def test_a_call_computes_and_builds_once(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    x = torch.randn(20, 4)
    for _ in range(3):
        assert torch.equal(made.d(x), 3 * x)
    assert len(made.executor.built) == 1
    y = torch.randn(21, 4)
    assert torch.equal(made.d(y), 3 * y)
    assert len(made.executor.built) == 2
    made.d.close()


def test_out_is_written_to_and_returned(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    x, out = torch.randn(20, 4), torch.empty(20, 4)
    assert made.d(x, out=out) is out
    assert torch.equal(out, 3 * x)
    assert made.d(x, out=out) is out
    for bad, message in (
        (torch.empty(21, 4), r"out has shape \(21, 4\) and must have y's: \(20, 4\)"),
        (torch.empty(20, 4, dtype=torch.float64), "y is float64 and must be float32"),
        (torch.empty(4, 20).t(), "out has strides"),
        ("text", "must be a torch.Tensor"),
    ):
        with pytest.raises(InputError, match=message):
            made.d(x, out=bad)
    made.d.close()


def test_values_of_index_tensors_are_checked_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_harness(tmp_path)

    def fault(_: object, inputs: dict[str, torch.Tensor]) -> str | None:
        return "x[0] is 7 and must be less" if inputs["x"][0, 0] == 7 else None

    monkeypatch.setattr(made.d.problem.operator, "index_fault", fault)
    good, bad = torch.zeros(20, 4), torch.full((20, 4), 7.0)
    for call in (made.d, made.d.check):
        with pytest.raises(InputError, match=r"^scaling: x\[0\] is 7 and must be less$"):
            call(bad)
    assert not made.executor.built
    made.d.check(good)
    assert torch.equal(made.d(good), 3 * good)
    assert torch.equal(made.d(bad), 3 * bad)  # a shape that was met: that would wait for the device
    with pytest.raises(InputError, match=r"x\[0\] is 7"):
        made.d.check(bad)
    with pytest.raises(InputError, match="x is float64 and must be float32"):
        made.d.check(good.double())
    with FakeTensorMode(), pytest.raises(InputError, match="values of fake tensors cannot be checked"):
        made.d.check(torch.zeros(20, 4))
    freed = torch.zeros(21, 4)
    freed.untyped_storage().resize_(0)  # to read its values would end the process
    for call in (made.d, made.d.check):
        with pytest.raises(InputError, match="its memory was freed"):
            call(freed)
    made.d.close()


@pytest.mark.parametrize("met", [False, True])
def test_wrong_tensors_are_named_in_the_error(tmp_path: Path, met: bool) -> None:
    made = make_harness(tmp_path)
    if met:
        made.d(torch.randn(20, 4))
    for bad, message in (
        ((), "0 inputs were given; call it with 1: x"),
        ((torch.randn(20, 4), torch.randn(20, 4)), "2 inputs were given"),
        ((3,), "x is of type int and must be a torch.Tensor"),
        (
            (torch.randn(20, 4).double(),),
            r"x is float64 and must be float32; convert it: x.to\(torch.float32\)",
        ),
        ((torch.randn(4, 20).t(),), r"x has strides \(1, 20\) and must be contiguous; give x.contiguous\(\)"),
        ((torch.randn(20, 5),), r"x.shape\[1\]=5 must be n=4, as fixed when it was made"),
        ((torch.randn(20),), r"x has 1 axes"),
        ((torch.empty(0, 4),), "m=0 must lie in 1"),
        ((torch.empty(20, 4, device="meta"),), "x lies on meta and target cpu runs on cpu"),
    ):
        with pytest.raises(InputError, match=message):
            made.d(*bad)  # type: ignore[arg-type]
    made.d.close()


def test_attributes_reach_the_kernel(tmp_path: Path) -> None:
    made = make_harness(tmp_path, attrs={"factor": 5})
    x = torch.randn(9, 4)
    assert torch.equal(made.d(x), 5 * x)
    made.d.close()


def test_one_library_is_used_for_every_size_of_a_dynamic_dimension(tmp_path: Path) -> None:
    made = make_harness(tmp_path, dynamic=("m",))
    for m in (1, 7, 64, 1000):
        x = torch.randn(m, 4)
        assert torch.equal(made.d(x), 3 * x)
    assert len(made.executor.built) == 1
    made.d.close()


def test_threads_may_share_a_dispatcher(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    begin = threading.Barrier(8)

    def work(number: int) -> bool:
        begin.wait()
        x = torch.full((10 + number % 3, 4), float(number))
        return all(torch.equal(made.d(x), 3 * x) for _ in range(300))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(made.executor.built) == 3  # once for each shape
    made.d.close()


def test_a_choice_that_does_not_build_gives_way_to_the_next(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(20, 16, fault="build"), s.winner(64, 32)])
    x = torch.randn(20, 4)
    assert torch.equal(made.d(x), 3 * x)
    chosen = made.d.choose(m=20)
    assert chosen.source is not ChoiceSource.RECORD
    assert "it does not compile" in chosen.reason
    made.d.close()


def test_if_nothing_builds_the_error_lists_the_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_harness(tmp_path)
    monkeypatch.setattr(type(made.problem.template), "default_config", lambda *_: config(8, "build"))
    with pytest.raises(NoCandidateError, match=r"default.*it does not compile"):
        made.d(torch.randn(9, 4))
    made.d.close()


def test_a_damaged_library_is_built_anew(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    choice = made.d.choose(m=20)
    [built] = made.shapes.builder.build([choice])
    assert built.artifact is not None
    Path(built.artifact).write_text("no library any more")
    x = torch.randn(20, 4)
    assert torch.equal(made.d(x), 3 * x)
    assert len(made.executor.built) == 2
    again = made.shapes.builder.find(choice)
    assert again is not None
    assert again.artifact != built.artifact
    assert not Path(built.artifact).exists()  # or the kernel cache would offer it again
    made.d.close()


def test_failed_loads_and_launches_are_errors(tmp_path: Path) -> None:
    for fault, message in (("load", "not a kernel library"), ("refuse", "the kernel refused")):
        made = make_harness(tmp_path, winners=lambda s, fault=fault: [s.winner(20, 16, fault=fault)])  # type: ignore[misc]
        with pytest.raises(LaunchError, match=message):
            made.d(torch.randn(20, 4))
        made.d.close()


def test_another_process_finds_built_kernels_without_lowering(tmp_path: Path) -> None:
    first = make_harness(tmp_path)
    first.d(torch.randn(20, 4))
    first.d.close()
    second = make_harness(tmp_path)
    x = torch.randn(20, 4)
    assert torch.equal(second.d(x), 3 * x)
    assert second.executor.built == []
    [note] = (tmp_path / "dispatch").glob("*.json")
    note.write_text('{"artifact": 3')
    third = make_harness(tmp_path)
    third.d(x)
    assert len(third.executor.built) == 1
    second.d.close()
    third.d.close()


def test_prepare_builds_ahead_and_returns_the_choices(tmp_path: Path) -> None:
    made = make_harness(tmp_path, on_miss="refuse")
    with pytest.raises(
        InputError,
        match=r"m=20 .* is not built, and with on_miss='refuse' no call builds one; .* prepare\(m=\[20\]\)",
    ):
        made.d(torch.randn(20, 4))
    choices = made.d.prepare(m=[20, 64, 20])
    assert [choice.workload.dims["m"] for choice in choices] == [20, 64]
    x = torch.randn(20, 4)
    assert torch.equal(made.d(x), 3 * x)
    assert made.d.prepare(m=20) == [choices[0]]
    assert len(made.executor.built) == 2
    made.d.close()


def test_a_built_kernel_is_used_while_the_chosen_one_is_built(tmp_path: Path) -> None:
    made = make_harness(
        tmp_path, on_miss="serve", winners=lambda s: [s.winner(64, 16, 9.0, ("m",)), s.winner(100, 32, 5.0)]
    )
    made.executor.hold = threading.Event()
    made.executor.hold.set()
    made.d(torch.randn(64, 4))  # it takes any m
    made.executor.hold.clear()
    x = torch.randn(100, 4)
    assert torch.equal(made.d(x), 3 * x)
    kernel = made.shapes.active((100,))
    assert kernel is not None
    assert kernel.choice.dynamic == ("m",)
    assert kernel.pending is not None
    assert kernel.pending.config == config(32)
    assert "until this is built" in made.d.explain()
    made.executor.hold.set()
    made.shapes.improver.thread.submit(bool).result(10)
    assert made.d.choose(m=100).config == config(32)  # a record needs no other proof
    assert torch.equal(made.d(x), 3 * x)
    made.d.close()


def test_the_number_of_bound_calls_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.dispatch.shape_table.SIGNATURE_LIMIT", 8)
    monkeypatch.setattr("tilesight.dispatch.select.loaded_sources.SHAPE_LIMIT", 8)
    made = make_harness(tmp_path, dynamic=("m",))
    for m in range(1, 60):
        x = torch.randn(m, 4)
        assert torch.equal(made.d(x), 3 * x)
    assert len(made.d._ready) <= 8
    assert len(made.shapes.shapes()) <= 8
    made.d.close()


def test_a_closed_dispatcher_refuses_calls_and_has_no_workers(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.d(torch.randn(20, 4))
    made.d.close()
    made.d.close()
    assert made.executor.closed == 1
    with pytest.raises(InputError, match="closed"):
        made.d(torch.randn(20, 4))


def test_an_unreferenced_dispatcher_is_garbage_collected(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.d(torch.randn(20, 4))
    gone = weakref.ref(made.d)
    del made
    gc.collect()
    assert gone() is None


def test_repr_and_explain(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(20, 16)])
    made.d(torch.randn(20, 4))
    assert (
        repr(made.d) == "<tilesight.dispatcher: scaling n=4 factor=3 float32 for any m on cpu, "
        "1 recorded shape, 1 shape met>"
    )
    text = made.d.explain()
    assert "m=20: record: block_m=16,fault=none (tuned: measured at 10 us)" in text
    assert "each shape has a kernel of its own" in text
    made.d.close()


def test_an_input_that_requires_a_gradient_causes_a_warning(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    x = torch.randn(20, 4, requires_grad=True)
    with pytest.warns(UserWarning, match="none will flow through this call"):
        made.d(x)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        made.d(torch.randn(21, 4, requires_grad=True))
    made.d.close()


@pytest.mark.parametrize("budget_s", [-1.0, 0.0, float("nan"), float("inf")])
def test_invalid_budgets_are_refused(tmp_path: Path, budget_s: float) -> None:
    made = make_harness(tmp_path)
    with pytest.raises(InputError, match="must be a number of seconds above 0"):
        made.d.improve(m=20, budget_s=budget_s)
    made.d.close()


@pytest.mark.parametrize("size", [2.5, "7", True])
def test_prepare_refuses_invalid_sizes(tmp_path: Path, size: object) -> None:
    made = make_harness(tmp_path)
    with pytest.raises(InputError):
        made.d.prepare(m=size)  # type: ignore[arg-type]
    made.d.close()


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def freed_view() -> torch.Tensor:
    """A view at an offset, whose address is not 0."""
    view = torch.randn(30, 4)[10:]
    return freed(view)


@pytest.mark.parametrize("met", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: freed(torch.randn(20, 4)), "x has a storage of 0 bytes and needs 320: its memory was freed"),
        (freed_view, "x has a storage of 0 bytes and needs 480"),
        (lambda: torch._neg_view(torch.randn(20, 4)), r"x is a negated .*\.resolve_neg\(\)"),
    ],
)
def test_memory_that_does_not_hold_the_values_is_refused(
    tmp_path: Path, met: bool, make: Callable[[], torch.Tensor], message: str
) -> None:
    made = make_harness(tmp_path)
    x = torch.randn(20, 4)
    if met:
        made.d(x)
    with pytest.raises(InputError, match=message):
        made.d(make())
    with pytest.raises(InputError, match=message.replace("x", "out|y", 1)):
        made.d(x, out=make())
    assert torch.equal(made.d(x), 3 * x)
    made.d.close()


def test_out_on_the_memory_of_an_input_is_refused(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    memory = torch.randn(40, 4)
    x = memory[10:30]
    for out in (
        x,
        memory[:20],
        memory[20:],
        memory[29:].new_empty(0).set_(memory.untyped_storage(), 116, (20, 4)),
    ):
        for call in (made.d, lambda x, out: made.d.op(x) if out is None else made.d._op_out(x, out)):
            with pytest.raises(InputError, match=r"out \(y\) shares memory with x"):
                call(x, out=out)
    beside = torch.randn(40, 4)
    assert torch.equal(made.d(beside[:20], out=beside[20:]), 3 * beside[:20])
    made.d.close()


def test_the_operator_of_torch_takes_memory_as_a_call_does(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    x = torch.randn(20, 4)
    assert torch.equal(made.d.op(torch._neg_view(x)), -3 * x)  # torch resolves it
    with pytest.raises(InputError, match="its memory was freed"):
        made.d.op(freed(torch.randn(20, 4)))
    made.d.close()


def test_a_first_call_says_that_it_builds_and_how_to_avoid_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_harness(tmp_path)
    made.d.prepare(m=30)
    made.d(torch.randn(30, 4))
    assert caplog.messages == []
    for _ in range(2):
        made.d(torch.randn(20, 4))
    [said] = caplog.messages
    for part in (r"m=20 n=4", "no built kernel", "block_m=8", "default", "prepare(m=[20])", "'serve'"):
        assert part in said
    assert "\n" not in said
    made.d.close()


def test_a_call_that_a_built_kernel_serves_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_harness(tmp_path, dynamic=("m",), on_miss="serve", winners=lambda made: [made.winner(40, 32)])
    made.d(torch.randn(9, 4))
    assert len(caplog.messages) == 1  # there was none to serve
    assert "no other built kernel takes this shape" in caplog.messages[0]
    made.d(torch.randn(40, 4))
    assert len(caplog.messages) == 1
    made.d.close()
