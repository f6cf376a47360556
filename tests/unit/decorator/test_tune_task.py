"""Tasks, their versions, recorded results and interim choices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.decorator import user_kernels
from tests.unit.decorator.conftest import no_work
from tilesight.decorator import Autotuned, TunedSource, autotune
from tilesight.decorator.options import AutotuneOptions, find_target
from tilesight.decorator.recall import interim_choice, opened_store
from tilesight.decorator.user_function import CompileOptions, UserFunction
from tilesight.errors import ConfigError, InputError, NoCandidateError
from tilesight.problem.space import Config
from tilesight.records.session import Effort, SessionResult
from tilesight.records.trial import Status
from tilesight.target.spec import load_target

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


def test_interim_choices() -> None:
    made = decorated()
    task = made._task(made._call((N,), {}))

    def choice() -> Any:
        with opened_store(AutotuneOptions()) as store:
            return interim_choice(task, store, "another process tunes it")

    first = choice()
    assert (first.source, first.values) == (TunedSource.DEFAULT, {"block": 16})
    assert first.messages == ("another process tunes it, and nothing is predicted yet",)
    assert not first.is_final
    ranking = decorated(effort="predict").tune(N)
    predicted = choice()
    assert (predicted.source, predicted.status) == (TunedSource.MODEL, Status.PREDICTED)
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
    assert (kernel.tilesight.source, kernel.tilesight.status) == (TunedSource.MODEL, Status.PREDICTED)
    a, b = torch.randn(N), torch.randn(N)
    torch.testing.assert_close(kernel(a, b), a + b)


def test_what_changes_the_key() -> None:
    plain = version(decorated())
    assert version(decorated()) == plain
    assert version(decorated(configs=CONFIGS[1:])) == plain, "other configs, the same kernel"
    assert version(decorated(effort="full", seed=7)) == plain
    others = [
        decorated(rtol=0.5),
        decorated(ref_prog=torch.add),
        decorated(ref_prog=None),
        decorated(skip_check=True),
    ]
    others.append(decorated(supply_type="Zero"))
    assert len({version(made) for made in others} | {plain}) == 6
    unchecked = [decorated(configs=c, ref_prog=None) for c in (CONFIGS, CONFIGS[1:])]
    assert version(unchecked[0]) != version(unchecked[1]), "held against another config"


def test_a_recalled_config_that_makes_other_code_now_is_tuned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No hash of a function sees which environment variables it reads."""

    def factory(n: int, block: int = 16) -> Any:
        return user_kernels.add_factory(n, block, wrong=block == 32 and "FACTOR" in os.environ)

    def tuned() -> SessionResult:
        made = autotune(configs=[{"block": 32}], target="cpu", effort="predict", out_idx=-1)(factory)
        assert isinstance(made, Autotuned)
        return made.tune(N)

    monkeypatch.delenv("FACTOR", raising=False)
    found = [tuned(), tuned()]
    monkeypatch.setenv("FACTOR", "2")
    found += [tuned(), tuned()]
    monkeypatch.delenv("FACTOR")
    found += [tuned()]
    assert [result.from_database for result in found] == [False, True, False, True, True]
    versions = [result.context.template_version for result in found]
    assert versions[0] == versions[1] == versions[4] != versions[2] == versions[3]


def test_unspecialized_arguments_are_not_compared_by_their_code() -> None:
    made = [decorated(effort="predict", do_not_specialize=["n"]).tune(n) for n in (N, 2 * N)]
    assert [result.from_database for result in made] == [False, True]


def test_unspecialized_arguments_have_one_key() -> None:
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
    assert find_target(AutotuneOptions(), function) == expected
    assert find_target(AutotuneOptions(target="h200"), function) == "h200"
    own = load_target("cpu")
    assert find_target(AutotuneOptions(target=own), function) is own


def test_settings_give_target_effort_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TARGET", "h200"), ("EFFORT", "full"), ("BUDGET", "90s")):
        monkeypatch.setenv(f"TILESIGHT_{name}", value)
    plain = autotune(configs={"block": [32, 64]})(user_kernels.add_factory)
    options = plain._options
    assert (options.effort, options.budget_s) == (Effort.FULL, 90.0)
    for_gpu, for_c = (UserFunction(user_kernels.add_factory, CompileOptions(target=t)) for t in ("cuda", "c"))
    assert find_target(options, for_gpu) == "h200"
    assert find_target(options, for_c) == "cpu", "what the function is compiled for decides"
    asked = autotune(configs={"block": [32]}, effort="predict", budget_s=5, target="auto")
    chosen = asked(user_kernels.add_factory)._options
    assert (chosen.effort, chosen.budget_s) == (Effort.PREDICT, 5)
    assert find_target(chosen, for_gpu) == "auto"


def test_configs_that_cannot_be_traced() -> None:
    def factory(n: int, block: int = 16) -> Any:
        if block > 16:
            raise ValueError(f"block={block} is too large")
        return user_kernels.add_factory(n, block)

    options: dict[str, Any] = {"target": "cpu", "out_idx": -1, "ref_prog": user_kernels.sum_of}
    with pytest.raises(
        NoCandidateError,
        match="none of 2 configs can be traced; the first says ValueError: block=32 is too large",
    ):
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

    result = autotune(configs=[{"parts": 1}, {"parts": 2}], target="cpu", effort="predict", out_idx=-1)(
        factory
    ).tune(N)
    [failed] = [t for t in result.trials if t.status is Status.FAILED]
    assert failed.failure is not None
    assert (
        "its arguments are not those of the first config: its 'A' is float32[512], not float32[256]"
        in failed.failure.message
    )


def test_functions_that_make_no_kernel() -> None:
    with pytest.raises(InputError, match="returned int and no PrimFunc"):
        autotune(configs=[{"block": 16}], target="cpu")(lambda n, block=16: n * block)(N)


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(Exception, match="set TILESIGHT_CACHE_DIR to a folder that can be written"):
        decorated(configs=CONFIGS[:2])(N)


def test_choice_and_explain_tune_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = decorated()
    with monkeypatch.context() as patch:
        no_work(patch)
        first = made.choice(N)
        given = made.choice(N, block=8)
    assert (first.source, first.values, first.latency_us) == (TunedSource.DEFAULT, {"block": 16}, None)
    assert first.messages == ("a call tunes these arguments first, and nothing is predicted yet",)
    assert (given.source, given.values) == (TunedSource.GIVEN, {"block": 8})
    ranking = decorated(effort="predict").tune(N)
    assert ranking.best is not None
    predicted = made.choice(N)
    assert (predicted.source, predicted.config) == (TunedSource.MODEL, ranking.best.config)
    kernel = made(N)
    assert made.choice(N) is kernel.tilesight
    with monkeypatch.context() as patch:
        no_work(patch)
        recorded = decorated().choice(N)
    assert (recorded.source, recorded.config) == (TunedSource.DATABASE, kernel.tilesight.config)
    assert recorded.latency_us is not None


def test_explains_the_chosen_config_and_others() -> None:
    made = decorated(configs=CONFIGS[:2])
    alone = made.explain(N)
    assert alone.this.config == Config({"block": 16}), "the default config: nothing is known yet"
    assert (alone.best, alone.this.measured_us) == (None, None)
    tuned = made(N).tilesight
    other = 48 - tuned.values["block"]
    found = made.explain(N, config={"block": other})
    assert found.workload == tuned.workload
    assert found.best is not None
    assert (found.best.config, found.best.measured_us) == (tuned.config, pytest.approx(tuned.latency_us))
    assert found.this.config == Config({"block": other})
    assert {(d.kind, d.name) for d in found.differences} >= {("parameter", "block")}
    assert made.explain(N, config=f"block={other}").this == found.this
    with pytest.raises(ConfigError, match="config 'block=17' is outside the search space"):
        made.explain(N, config={"block": 17})
    with pytest.raises(InputError, match="block is given; leave it out"):
        made.explain(N, block=16)
