"""Users' kernels are tuned, checked and called on the processor."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.preloaded import PreloadedParent
from tests.unit.decorator import user_kernels
from tests.unit.decorator.conftest import no_work
from tilesight.decorator import Autotuned, TunedSource, autotune
from tilesight.errors import FailureKind, InputError, NoCandidateError, ProgramError, ToolchainError
from tilesight.records.trial import Status
from tilesight.tuner.tuning_lock import tuning_process

pytestmark = pytest.mark.usefixtures("places")

N = 512
CONFIGS: list[dict[str, Any]] = [{"block": 16}, {"block": 32}, {"block": 32, "wrong": True}]


@pytest.mark.full
def test_noisy_times_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_MAX_NOISE", "1e-9")
    made = autotune(configs=CONFIGS[:1], ref_prog=user_kernels.sum_of)(user_kernels.jitted_add())
    with pytest.warns(UserWarning, match="other work on the machine disturbed the measured times"):
        kernel = made(N)
    assert kernel.tilesight.status is Status.NOISY


def test_tuned_checked_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorated() -> Autotuned:
        made = autotune(configs=CONFIGS, ref_prog=user_kernels.sum_of)(user_kernels.jitted_add())
        assert isinstance(made, Autotuned)
        return made

    kernel = decorated()(N)
    a, b = torch.randn(N), torch.randn(N)
    torch.testing.assert_close(kernel(a, b), a + b)
    facts = kernel.tilesight
    assert (facts.source, facts.status) == (TunedSource.SESSION, Status.VERIFIED)
    assert kernel.config == facts.values == {"block": facts.values["block"]}
    assert kernel.latency == pytest.approx(facts.latency_us / 1e3)
    assert kernel.ref_latency > 0
    assert "tilesight_call" in kernel.get_kernel_source()
    assert "global_symbol" in str(kernel.prim_func.attrs)
    block = facts.values["block"]
    assert facts.result.usage == f"add_factory({N}, block={block})"
    assert str(facts.result).endswith(f"as a dict: {{'block': {block}}}\nin Python: {facts.result.usage}")
    [wrong] = [t for t in facts.result.trials if t.status is Status.FAILED]
    assert wrong.failure is not None
    assert wrong.failure.kind is FailureKind.WRONG_RESULT
    assert dict(wrong.config) == {"block": 32, "wrong": True}
    with pytest.raises(ValueError, match=r"takes 2 tensors \(A, B\) and was given 1"):
        kernel(a)
    with pytest.raises(ValueError, match=r"'B' must be torch.float32\[512\] on cpu, and is torch.float64"):
        kernel(a, b.double())
    with pytest.raises(ValueError, match=r"'B' is a negated .*resolve_neg"):
        kernel(a, torch._neg_view(b))
    freed = torch.randn(N)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="'A' has a storage of 0 bytes and needs 2048"):
        kernel(freed, b)

    no_work(monkeypatch)
    again = decorated()(N)
    assert again.tilesight.source is TunedSource.DATABASE
    assert again.config == kernel.config
    assert again.artifact == kernel.artifact
    given = decorated()(N, block=8)
    assert given.tilesight.source is TunedSource.GIVEN
    torch.testing.assert_close(given(a, b), a + b)
    with pytest.raises(AssertionError, match="no process may be started"):
        decorated()(2 * N)
    with pytest.raises(AssertionError, match="no process may be started"):
        autotune(configs=CONFIGS, ref_prog=torch.add)(user_kernels.jitted_add())(N)


def test_eager_kernels_run_and_all_configs_must_agree() -> None:
    import tilelang

    add = autotune(space={"block": [16, 64]}, constraints=[lambda c: c["block"] < 100])(
        tilelang.jit(target="c")(user_kernels.eager_add)
    )
    a, b = torch.randn(N), torch.randn(N)
    torch.testing.assert_close(add(a, b), a + b)
    torch.testing.assert_close(add(b, b), b + b)
    kernel = add.compile(a, b)
    assert kernel.tilesight.status is Status.VERIFIED
    assert kernel.ref_latency is None
    assert all(
        t.measurement is not None and t.measurement.relative_error == 0
        for t in kernel.tilesight.result.trials
        if t.measured_us
    )


def test_in_place_kernels_of_plain_functions_whose_output_comes_first() -> None:
    add = autotune(configs=[{"block": 16}, {"block": 32}], target="cpu")(user_kernels.accumulate_factory)
    kernel = add(N)
    y, x = torch.arange(N, dtype=torch.int32), torch.randint(-9, 9, (N,), dtype=torch.int8)
    expected = y + 3 * x.int()
    assert kernel(y, x) is None
    assert torch.equal(y, expected)
    assert kernel.tilesight.status is Status.VERIFIED


@pytest.mark.full
def test_inputs_of_the_users_own() -> None:
    from tilelang.autotuner import set_autotune_inputs

    def sum_of_halves(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        assert bool((a == 0.5).all()), "other inputs than were given"
        return a + b

    def supply(parameters: Any) -> list[torch.Tensor]:
        return [torch.full(tuple(p.shape), 0.5, dtype=p.torch_dtype()) for p in parameters]

    def decorated(**options: Any) -> Any:
        return autotune(configs=CONFIGS[:1], ref_prog=sum_of_halves, **options)(user_kernels.jitted_add())

    assert decorated(supply_prog=supply)(N).tilesight.status is Status.VERIFIED
    with set_autotune_inputs(torch.full((N,), 0.5), torch.ones(N)):
        held = decorated()(N)
    assert held.tilesight.source is TunedSource.SESSION
    with (
        pytest.raises(InputError, match="set_autotune_inputs has 1 inputs, and the kernel takes 2: A, B"),
        set_autotune_inputs(torch.ones(N)),
    ):
        decorated()(N)
    with pytest.raises(ProgramError, match="other inputs than were given"):
        decorated()(N)


def test_unchecked_candidates_are_not_verified() -> None:
    made = autotune(configs=CONFIGS[:2], skip_check=True, target="cpu", out_idx=-1)(user_kernels.add_factory)
    kernel = made(N)
    assert kernel.tilesight.status is Status.MEASURED
    assert kernel.latency > 0
    assert {t.status for t in kernel.tilesight.result.trials} == {Status.MEASURED}


def test_a_wrong_candidate_is_never_returned() -> None:
    made = autotune(
        configs=[{"block": 16, "wrong": True}], ref_prog=user_kernels.sum_of, target="cpu", out_idx=-1
    )(user_kernels.add_factory)
    with pytest.raises(NoCandidateError, match="1 wrong_result: output 'C'"):
        made(N)


def test_predictions_for_a_target_that_is_not_here() -> None:
    import tilelang.language as T  # noqa: N812

    def factory(n, block=128):  # type: ignore[no-untyped-def]
        @T.prim_func
        def double(  # type: ignore[no-untyped-def]
            A: T.Tensor((n,), "float16"),  # type: ignore[valid-type]  # noqa: N803
            B: T.Tensor((n,), "float16"),  # type: ignore[valid-type]  # noqa: N803
        ):
            with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
                part = T.alloc_fragment((block,), "float16")
                T.copy(A[bx * block], part)
                T.copy(part, B[bx * block])

        return double

    made = autotune(configs=[{"block": 128}, {"block": 256}], target="h200", effort="predict")(factory)
    result = made.tune(1 << 20)
    assert result.best is not None
    assert result.best.status is Status.PREDICTED
    assert len(result.trials) == 2
    assert result.context.device == ""
    if not torch.cuda.is_available():
        with pytest.raises(ToolchainError, match="torch sees no GPU"):
            made(1 << 20)


@pytest.mark.full
def test_cells_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their source is where IPython puts it, and no module holds them."""
    source = Path(user_kernels.__file__).read_text(encoding="utf-8")
    name = "<ipython-input-7-autotune>"
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec", dont_inherit=True), cell)
    made = autotune(configs=CONFIGS[:2], ref_prog=cell["sum_of"], target="cpu", out_idx=-1)(
        cell["add_factory"]
    )
    kernel = made(N)
    assert kernel.tilesight.status is Status.VERIFIED
    no_work(monkeypatch)
    there = autotune(configs=CONFIGS[:2], ref_prog=user_kernels.sum_of, target="cpu", out_idx=-1)(
        user_kernels.add_factory
    )
    assert there(N).tilesight.source is TunedSource.DATABASE, (
        "the same code is the same kernel, wherever it stands"
    )


SCRIPT = """
from tests.unit.decorator import user_kernels
from tests.unit.decorator.conftest import no_work
from tilesight.decorator import autotune

configs = [{"block": 16}, {"block": 32}]
options = {"ref_prog": user_kernels.sum_of, "effort": "predict", "workers": 1}
add = autotune(configs=configs, **options)(user_kernels.jitted_add())
kernel = add(1024)
print(kernel.tilesight.result.from_database, kernel.config)
"""


@pytest.mark.full
def test_a_result_of_another_process_is_waited_for_and_recalled(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, str(places / "script.py")]
    with PreloadedParent(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as other:
        while other.poll() is None and not [
            lock for lock in places.glob("cache/tuning/*") if tuning_process(places / "cache", lock.stem)
        ]:
            time.sleep(0.02)
        no_work(monkeypatch)
        add = autotune(configs=CONFIGS[:2], ref_prog=user_kernels.sum_of, effort="predict")(
            user_kernels.jitted_add()
        )
        kernel = add(1024)
        out, err = other.communicate(timeout=300)
    assert out.split(" ", 1) == ["False", f"{kernel.config}\n"], err
    assert kernel.tilesight.result.from_database
    assert kernel.tilesight.source is TunedSource.MODEL
    assert kernel.latency is None, "a prediction is no time"
    a, b = torch.randn(1024), torch.randn(1024)
    torch.testing.assert_close(kernel(a, b), a + b)


@pytest.mark.full
def test_an_error_of_ref_prog_ends_the_call_and_fails_no_config(tmp_path: Path) -> None:
    zero = tmp_path / "zero.pt"

    def decorated() -> Autotuned:
        made = autotune(configs=CONFIGS[:2], ref_prog=partial(user_kernels.sum_of_a_file, zero=str(zero)))(
            user_kernels.jitted_add()
        )
        assert isinstance(made, Autotuned)
        return made

    with pytest.raises(ProgramError, match=r"ref_prog of '.*': FileNotFoundError: .*zero\.pt"):
        decorated()(N)
    torch.save(torch.zeros(N), zero)
    facts = decorated()(N).tilesight
    assert (facts.source, facts.status) == (TunedSource.SESSION, Status.VERIFIED)
    assert all(trial.failure is None for trial in facts.result.trials)
