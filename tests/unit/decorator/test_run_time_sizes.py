"""Kernels that take sizes and numbers at run time: measured at given values, built once for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.decorator import user_kernels
from tests.unit.decorator.conftest import no_work
from tilesight.decorator import Autotuned, TunedSource, autotune
from tilesight.decorator.run_time_values import run_time_values
from tilesight.errors import FailureKind, InputError
from tilesight.records.trial import Status

pytestmark = pytest.mark.usefixtures("places")

WIDTH = 16
AT = {"m": 96, "s": 0.5, "offset": -3}


def decorated(**options: Any) -> Autotuned:
    given = {"ref_prog": user_kernels.scaled, "measured_at": AT, **options}
    configs = [{"block": 8}, {"block": 32}, {"block": 32, "wrong": True}]
    made = autotune(configs=configs, target="cpu", out_idx=-1, **given)(user_kernels.rows_factory)
    assert isinstance(made, Autotuned)
    return made


def test_one_kernel_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = decorated()(WIDTH)
    facts = kernel.tilesight
    assert facts.status is Status.VERIFIED
    assert (facts.result.context.dynamic, facts.workload.dims["m"]) == (("m",), 96)
    [wrong] = [t for t in facts.result.trials if t.status is Status.FAILED]
    assert wrong.failure.kind is FailureKind.WRONG_RESULT
    for rows, s, offset in ((1, 2.0, 7), (96, -0.25, 0), (1001, 1e-3, -(2**31))):
        a = torch.randn(rows, WIDTH)
        torch.testing.assert_close(kernel(a, s, offset), a * s + offset)
    no_work(monkeypatch)
    again = decorated()(WIDTH)
    assert again.tilesight.source is TunedSource.DATABASE
    assert again.artifact == kernel.artifact
    given = decorated(measured_at=None)(WIDTH, block=16)
    a = torch.randn(5, WIDTH)
    torch.testing.assert_close(given(a, 2.0, 1), a * 2 + 1)


def test_wrong_arguments_of_a_kernel_are_refused() -> None:
    kernel = decorated()(WIDTH, block=8)
    a = torch.randn(4, WIDTH)
    for arguments, message in [
        ((a, 1.0), r"takes 3 arguments \(A, s, offset\) and was given 2"),
        ((a, a, 1), "'s' must be a number of float32, and is Tensor"),
        ((a, 1.0, 0.5), "'offset'=0.5 is no int32"),
        ((a, 1.0, 2**31), "'offset'=2147483648 is no int32"),
        ((a[:, :3], 1.0, 1), r"'A' must be torch.float32\[m, 16\] on cpu with m=4, and is"),
        ((3, 1.0, 1), "'A' must be a tensor, and is int"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel(*arguments)


def test_eager_calls_of_all_sizes_share_one_kernel() -> None:
    import tilelang

    made = autotune(space={"block": [8, 32]})(tilelang.jit(target="c")(user_kernels.eager_rows))
    a = torch.randn(96, WIDTH)
    torch.testing.assert_close(made(a, 0.5), a * 0.5)
    first = made.compile(a, 0.5)
    assert first.tilesight.workload.dims == {"m": 96, "A_1": WIDTH}
    for rows, s in ((1, 2.0), (77, -1.5)):
        b = torch.randn(rows, WIDTH)
        torch.testing.assert_close(made(b, s), b * s)
        assert made.compile(b, s) is first, "the number of rows and the factor are no part of the key"
    wider = torch.randn(96, 2 * WIDTH)
    assert made.choice(wider, 0.5).source is not TunedSource.SESSION, "another width is another kernel"


def test_the_values_come_from_tensors_too(places: Path) -> None:  # noqa: ARG001
    from tilelang.autotuner import set_autotune_inputs

    made = decorated(measured_at=None, effort="predict")
    with set_autotune_inputs(torch.ones(24, WIDTH), 0.5, 3):
        found = made.tune(WIDTH)
    assert found.context.workload.dims["m"] == 24
    larger = decorated(effort="predict", measured_at={**AT, "m": 96_000}).tune(WIDTH)
    assert larger.best is not None
    assert found.best is not None
    assert larger.best.predicted_us > 100 * found.best.predicted_us, "predicted at the size"


def test_a_size_as_an_argument() -> None:
    """As in `matmul(T.dynamic("m"), 4096, 4096)`: a new variable at each call, and the same kernel."""
    import tilelang.language as T  # noqa: N812

    made = autotune(
        configs=[{"block": 16}], target="cpu", out_idx=-1, effort="predict", measured_at={"n": 640}
    )(user_kernels.add_factory)
    one, two = (made._call((T.dynamic("n"),), {}).key for _ in range(2))
    assert one == two != made._call((T.dynamic("k"),), {}).key
    with pytest.raises(InputError, match=r"measured_at names n, which .*; it takes: k"):
        made.tune(T.dynamic("k"))
    assert made.tune(T.dynamic("n")).context.workload.dims == {"n": 640}


def test_what_is_missing_or_wrong_is_said() -> None:
    with pytest.raises(InputError, match=r"'A' has the shape \[m, 16\], and m is known .*measured_at=\{'m'"):
        decorated(measured_at={"s": 1.0, "offset": 1}).tune(WIDTH)
    with pytest.raises(InputError, match=r"argument 's' is a number, and s is known at run time only"):
        decorated(measured_at={"m": 4, "offset": 1}).tune(WIDTH)
    with pytest.raises(InputError, match="offset=5000000000 is no int32"):
        decorated(measured_at={**AT, "offset": 5_000_000_000}).tune(WIDTH)
    with pytest.raises(InputError, match="measured_at must be a dictionary"):
        decorated(measured_at=[4])
    with pytest.raises(InputError, match="measured_at has m='4', which is no number"):
        decorated(measured_at={"m": "4"})
    traced = user_kernels.add_factory(64)
    assert run_time_values(traced, [-1], "add", [], {}) == {}
    open_copy = user_kernels.dynamic_factory()
    with pytest.raises(InputError, match="the given tensors disagree on n: 4 and 5"):
        run_time_values(open_copy, None, "copy", [torch.ones(4), torch.ones(5)], {})
