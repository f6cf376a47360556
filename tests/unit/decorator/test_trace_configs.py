"""Configs that crash or raise while they are traced, and what a copy of the process cannot do."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.unit.decorator import user_kernels
from tilesight.decorator import autotune
from tilesight.decorator.arguments import read_call
from tilesight.decorator.config_space import read_choices
from tilesight.decorator.trace_configs import TraceError, Traces, find_mode
from tilesight.decorator.user_function import UserFunction
from tilesight.errors import FailureKind, NoCandidateError
from tilesight.problem.space import Config
from tilesight.records.trial import Status

pytestmark = pytest.mark.usefixtures("places")

N = 256
HERE = os.getpid()


def add(n: int, block: int = 16) -> Any:
    """It crashes at 8 and raises at 24; at 64 it needs what no copy of a process has."""
    if block == 8:
        os.abort()
    if block == 24:
        raise ValueError("no tile of 24")
    if block == 64 and os.getpid() != HERE:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    return user_kernels.add_factory(n, block)


def traces(*blocks: int) -> Traces:
    function = UserFunction(add)
    choices = read_choices([{"block": b} for b in blocks], None, (), function.signature, "add")
    return Traces(function, (N,), {}, choices)


def test_a_config_that_crashes_costs_that_config() -> None:
    """It is the default config: the first that is traced, and the one that results would be compared with."""
    configs = [{"block": block} for block in (8, 24, 16, 32)]
    made = autotune(configs=configs, target="cpu", out_idx=-1)(lambda n, block=8: add(n, block))
    kernel = made(N)
    a, b = torch.randn(N), torch.randn(N)
    torch.testing.assert_close(kernel(a, b), a + b)
    trials = {t.config["block"]: t for t in kernel.tilesight.result.trials}
    assert {block: t.status for block, t in trials.items()} == {
        8: Status.FAILED, 24: Status.FAILED, 16: Status.VERIFIED, 32: Status.VERIFIED,
    }  # fmt: skip
    crash, error = trials[8].failure, trials[24].failure
    assert crash is not None
    assert error is not None
    assert crash.kind is error.kind is FailureKind.LOWER_ERROR
    assert "tracing it ended the process: the process was killed by SIGABRT" in crash.message
    assert "ValueError: no tile of 24" in error.message


def test_what_a_copy_cannot_do_is_done_here() -> None:
    found = traces(16, 64)
    assert str(found.trace(Config({"block": 16})).script()) == str(user_kernels.add_factory(N, 16).script())
    assert str(found.trace(Config({"block": 64})).script()) == str(user_kernels.add_factory(N, 64).script())


def test_an_error_is_the_users_own() -> None:
    with pytest.raises(ValueError, match="no tile of 24") as raised:
        traces(24).trace(Config({"block": 24}))
    assert raised.traceback[-1].name == "add"
    with pytest.raises(TraceError, match="killed by SIGABRT"):
        traces(8).trace(Config({"block": 8}))


def test_all_configs_crash() -> None:
    made = autotune(configs=[{"block": 8}], target="cpu", out_idx=-1)(add)
    with pytest.raises(NoCandidateError, match=r"add: none of 1 configs can be traced; .*SIGABRT"):
        made(N)


def test_the_mode_is_found_in_a_copy() -> None:
    """TileLang runs a function without a PrimFunc of its own to know whether it is lazy."""
    import tilelang

    function = UserFunction(tilelang.jit(out_idx=[-1], target="c")(add))
    choices = read_choices([{"block": 8}, {"block": 16}], None, (), function.signature, "add")
    call = read_call(function.signature, (N,), {}, choices.names)
    assert function.runs_to_know_its_mode
    assert not find_mode(function, call, choices)
    assert not function.runs_to_know_its_mode
    target = function.target
    assert function.target is target, "copying resolves the target for the copy alone"
