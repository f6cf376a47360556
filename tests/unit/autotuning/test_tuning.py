"""From a function to a request, and what is chosen before anything was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.autotuning import user_kernels
from tilesight.autotuning import Autotuned, Source, autotune
from tilesight.autotuning.tuning import Asked, find_target, model_choice, opened_store
from tilesight.autotuning.user_function import CompileOptions, UserFunction
from tilesight.errors import InputError, NoCandidateError
from tilesight.target import load_target
from tilesight.trial import Status

pytestmark = pytest.mark.usefixtures("places")

CONFIGS: list[dict[str, Any]] = [{"block": 16}, {"block": 32}, {"block": 64, "wrong": True}]
N = 256


def decorated(configs: Any = None, **options: Any) -> Autotuned:
    given = {"ref_prog": user_kernels.sum_of, **options}
    made = autotune(configs=configs or CONFIGS, **given)(user_kernels.jitted_add())
    assert isinstance(made, Autotuned)
    return made


def version(made: Autotuned) -> str:
    return made._task(made._call((N,), {})).request.context.template_version


def test_what_is_chosen_while_another_one_tunes() -> None:
    made = decorated()
    task = made._task(made._call((N,), {}))

    def choice() -> Any:
        with opened_store(Asked()) as store:
            return model_choice(task, store, "another process tunes it")

    first = choice()
    assert (first.source, first.values) == (Source.DEFAULT, {"block": 16})
    assert first.messages == ("another process tunes it, and nothing is predicted yet",)
    assert not first.is_final
    ranking = decorated(effort="predict").tune(N)
    predicted = choice()
    assert (predicted.source, predicted.status) == (Source.MODEL, Status.PREDICTED)
    assert ranking.best is not None
    assert predicted.config == ranking.best.config
    assert predicted.latency_us is None
    made.tune(N)
    measured = choice()
    assert measured.status is Status.VERIFIED
    assert measured.latency_us is not None
    assert "wrong" not in measured.values, "a candidate that failed is no choice, however fast it looked"


def test_the_models_first_choice_on_a_miss() -> None:
    kernel = decorated(configs=CONFIGS[:2], on_miss="model")(N)
    assert (kernel.tilesight.source, kernel.tilesight.status) == (Source.MODEL, Status.PREDICTED)
    a, b = torch.randn(N), torch.randn(N)
    torch.testing.assert_close(kernel(a, b), a + b)


def test_what_changes_the_key() -> None:
    plain = version(decorated())
    assert version(decorated()) == plain
    assert version(decorated(configs=CONFIGS[1:])) == plain, "other configs, the same kernel"
    assert version(decorated(effort="full", seed=7)) == plain
    others = [decorated(rtol=0.5), decorated(ref_prog=torch.add), decorated(ref_prog=None), decorated(skip_check=True)]
    others.append(decorated(supply_type="Zero"))
    assert len({version(made) for made in others} | {plain}) == 6
    unchecked = [decorated(configs=c, ref_prog=None) for c in (CONFIGS, CONFIGS[1:])]
    assert version(unchecked[0]) != version(unchecked[1]), "held against another config"


def test_arguments_that_are_not_told_apart_have_one_key() -> None:
    made = decorated(do_not_specialize=["n"])
    one, two = (made._task(made._call((n,), {})).request.context for n in (N, 2 * N))
    assert one.key == two.key
    plain = decorated()
    one, two = (plain._task(plain._call((n,), {})).request.context for n in (N, 2 * N))
    assert one.key != two.key


@pytest.mark.parametrize(
    ("compiled_for", "expected"),
    [
        ("c", "cpu"),
        ("llvm -mcpu=native", "cpu"),
        ({"kind": "c"}, "cpu"),
        ("cuda", "auto"),
        ({"kind": "cuda", "arch": "sm_90"}, "auto"),
        (None, "auto"),
    ],
)
def test_targets(compiled_for: Any, expected: str) -> None:
    function = UserFunction(user_kernels.add_factory, CompileOptions(target=compiled_for))
    assert find_target(Asked(), function) == expected
    assert find_target(Asked(target="h200"), function) == "h200"
    own = load_target("cpu")
    assert find_target(Asked(target=own), function) is own


def test_configs_that_cannot_be_traced() -> None:
    def factory(n: int, block: int = 16) -> Any:
        if block > 16:
            raise ValueError(f"block={block} is too large")
        return user_kernels.add_factory(n, block)

    options: dict[str, Any] = {"target": "cpu", "out_idx": -1, "ref_prog": user_kernels.sum_of}
    with pytest.raises(NoCandidateError, match="none of 2 configs can be traced; the first says ValueError: block=32 is too large"):
        autotune(configs=[{"block": 32}, {"block": 64}], **options)(factory)(N)
    result = autotune(configs=[{"block": 32}, {"block": 16}], effort="predict", **options)(factory).tune(N)
    [failed] = [t for t in result.trials if t.status is Status.FAILED]
    assert failed.failure is not None
    assert "block=32 is too large" in failed.failure.message
    with pytest.raises(NoCandidateError, match="none of 1 configs is legal"):
        autotune(space={"block": [16]}, constraints=[lambda _: False], **options)(factory)(N)


def test_configs_must_make_kernels_of_the_same_tensors() -> None:
    def factory(n: int, parts: int = 1) -> Any:
        return user_kernels.add_factory(n * parts)

    result = autotune(configs=[{"parts": 1}, {"parts": 2}], target="cpu", effort="predict", out_idx=-1)(factory).tune(N)
    [failed] = [t for t in result.trials if t.status is Status.FAILED]
    assert failed.failure is not None
    assert "its arguments are not those of the first config: its 'A' is float32[512], not float32[256]" in failed.failure.message


def test_functions_that_make_no_kernel() -> None:
    with pytest.raises(InputError, match="returned int and no PrimFunc"):
        autotune(configs=[{"block": 16}], target="cpu")(lambda n, block=16: n * block)(N)


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(Exception, match="set TILESIGHT_CACHE_DIR to a folder that can be written"):
        decorated(configs=CONFIGS[:2])(N)
