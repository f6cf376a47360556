"""Arguments of the decorator."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import pytest
import tilelang

from tests.unit.decorator import user_kernels
from tilesight.decorator import Autotuned, autotune, autotune_decorator
from tilesight.errors import InputError, UnknownNameError

CONFIGS = [{"block": 16}, {"block": 32}]


def test_all_arguments_of_tilelang_are_taken() -> None:
    theirs = inspect.signature(tilelang.autotune).parameters
    ours = inspect.signature(autotune).parameters
    assert set(theirs) <= set(ours)
    for name, parameter in theirs.items():
        if name not in ("configs", "supply_type"):  # ours may be left out
            assert ours[name].default == parameter.default, name


def test_an_ignored_argument_gives_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune_decorator, "_warned", set())
    with pytest.warns(UserWarning, match="has no effect") as said:
        autotune(
            configs=CONFIGS,
            warmup=3,
            rep=20,
            timeout=10,
            cache_input_tensors=True,
            early_stop=True,
            early_stop_factor=3.0,
        )
    assert [str(w.message).split(":")[1].split()[0] for w in said] == [
        "warmup",
        "rep",
        "timeout",
        "early_stop",
        "early_stop_factor",
        "cache_input_tensors",
    ]
    assert all(w.filename == __file__ for w in said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autotune(configs=CONFIGS, warmup=3)
        autotune(configs=CONFIGS, warmup=25, rep=100, timeout=100)


def test_what_can_be_decorated() -> None:
    for wrapped in (
        user_kernels.add_factory,
        user_kernels.jitted_add(),
        lambda n, block=16: user_kernels.add_factory(n, block),
    ):
        made = autotune(configs=CONFIGS)(wrapped)
        assert isinstance(made, Autotuned)
        assert made.func is wrapped
    named = autotune(configs=CONFIGS)(user_kernels.jitted_add())
    assert named.__name__ == "add_factory"
    assert named.__doc__ == user_kernels.add_factory.__doc__
    assert isinstance(autotune(user_kernels.add_factory, configs=CONFIGS), Autotuned), "also as a plain call"


def test_partial_functions_and_objects_are_called_as_they_are() -> None:
    class Factory:
        def __call__(self, n: int, block: int = 16) -> Any: ...

    part = autotune(configs=CONFIGS)(functools.partial(user_kernels.add_factory, wrong=False))
    with pytest.raises(TypeError, match="missing 1 required argument: n"):
        part.tune()
    made = autotune(configs=CONFIGS)(Factory())
    with pytest.raises(TypeError, match="missing 1 required argument: n"):
        made.tune()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "neither was given"),
        ({"configs": CONFIGS, "space": {"block": [1]}}, "both were given"),
        ({"configs": CONFIGS, "effort": "quik"}, "did you mean quick"),
        ({"configs": CONFIGS, "on_miss": "fail"}, "unknown on_miss 'fail'"),
        ({"configs": CONFIGS, "while_tuning": "go"}, "unknown while_tuning"),
        ({"configs": CONFIGS, "budget_s": 0}, "budget_s=0"),
        ({"configs": CONFIGS, "workers": 0}, "workers=0"),
        ({"configs": CONFIGS, "supply_type": "Zeros"}, "did you mean Zero"),
        ({"configs": CONFIGS, "ref_prog": "a @ b"}, "ref_prog must be a function"),
        ({"configs": CONFIGS, "manual_check_prog": print}, "there is none: give it"),
        ({"configs": CONFIGS, "rtol": -1}, "rtol=-1"),
        ({"configs": CONFIGS, "seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"configs": CONFIGS, "seed": True}, "seed must be a whole number"),
        (
            {"configs": CONFIGS, "model": 3},
            "model must be a cost model with `version` and `predict`, not int",
        ),
        (
            {"configs": CONFIGS, "observer": 3},
            r"observer must be a tilesight\.tuner\.observers\.Observer, not int",
        ),
        ({"configs": CONFIGS, "observer": 0}, "observer must be"),
        (
            {"configs": CONFIGS, "constraints": bool},
            "constraints must be a list of functions of a config, not type",
        ),
        (
            {"configs": CONFIGS, "constraints": "block < 2"},
            "constraints must be a list of functions of a config, not str",
        ),
        (
            {"configs": CONFIGS, "constraints": None},
            "constraints must be a list of functions of a config, not NoneType",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        autotune(**arguments)


@pytest.mark.parametrize(
    ("wrapped", "said"),
    [
        (lambda: user_kernels.add_factory(64), "not a PrimFunc"),
        (lambda: 7, "decorates functions, not int"),
        (lambda: staticmethod(user_kernels.add_factory), "put them above it"),
        (lambda: autotune(configs=CONFIGS)(user_kernels.add_factory), "is autotuned already"),
    ],
)
def test_what_cannot_be_decorated(wrapped: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        autotune(configs=CONFIGS)(wrapped())


def test_without_anything_to_choose_from() -> None:
    with pytest.raises(InputError, match="needs something to choose from"):
        autotune(user_kernels.add_factory)


def test_options_of_tilelang_belong_to_its_own_decorator() -> None:
    with pytest.raises(InputError, match=r"takes no out_idx: give them to @tilelang\.jit"):
        autotune(configs=CONFIGS, out_idx=[-1])(user_kernels.jitted_add())


def test_names_are_checked_when_it_is_decorated() -> None:
    with pytest.raises(UnknownNameError, match="did you mean block"):
        autotune(configs=[{"blok": 1}])(user_kernels.add_factory)
    with pytest.raises(UnknownNameError, match="argument of add_factory"):
        autotune(configs=CONFIGS, do_not_specialize=["m"])(user_kernels.add_factory)


def test_it_has_the_signature_of_the_decorated_function() -> None:
    tuned = autotune(configs=CONFIGS)(user_kernels.add_factory)
    assert inspect.signature(tuned) == inspect.signature(user_kernels.add_factory)
