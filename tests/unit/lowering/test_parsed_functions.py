from __future__ import annotations

from typing import Any

import pytest

from tilesight.kernels import operator, template_for
from tilesight.lowering.lower import lower
from tilesight.lowering.parsed_functions import ParsedFunctions, parse_once
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

from .test_thread_sync import SPECIALIZED

H200 = load_target("h200")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that TileLang parses, after `parse_once`."""
    import tilelang  # noqa: F401
    from tilelang.language.eager import builder

    names: list[str] = []
    mutate = getattr(builder.mutate, "_mutate", builder.mutate)

    def noted(function: Any) -> Any:
        names.append(function.__name__)
        return mutate(function)

    monkeypatch.setattr(builder, "mutate", noted)  # and put back at the end
    parse_once()
    parse_once()
    return names


def traced(config: Config) -> Any:
    template = template_for("matmul", H200, "bfloat16")
    return template.build(operator("matmul").workload("m=512,n=512,k=512"), config)


def test_kernels_are_those_of_functions_that_were_parsed_anew(parsed: list[str]) -> None:
    from tilelang.language.eager import builder

    changes: tuple[dict[str, int | str], ...] = (
        {},
        {"block_n": 64, "num_stages": 2},
        {"epilogue": "direct"},
        {"block_k": 32, "swizzle": 4},
    )
    configs = [Config({**SPECIALIZED, **change}) for change in changes]
    once = [traced(config).script() for config in configs]
    lowered_once = lower(traced(configs[0]), H200).device.script()
    count = len(parsed)
    assert len(set(parsed)) == count, "each function once"
    assert [traced(config).script() for config in configs] == once
    assert len(parsed) == count
    builder.mutate = builder.mutate._mutate  # parses each time
    assert [traced(config).script() for config in configs] == once
    assert len(parsed) > count
    assert lower(traced(configs[0]), H200).device.script() == lowered_once


def adder(amount: int, *, names: Any) -> Any:
    def add(x: int) -> int:
        with names.scope(amount):
            return x + amount

    return add


class Parser:
    """Like TileLang's: what it makes has the outer variables of the function."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, function: Any) -> Any:
        from tilelang.language.eager.ast import mutate

        self.count += 1
        return mutate(function)


class Names:
    @staticmethod
    def scope(_amount: int) -> Any:
        from contextlib import nullcontext

        return nullcontext()


def result(generator: Any, argument: int) -> int:
    from tilelang.language.eager.ast import BaseBuilder

    class Builder(BaseBuilder):
        def set_fileline(self, *_place: Any) -> None:
            pass

    return int(generator.gen(Builder())(argument))


def test_outer_variables_are_those_of_each_function() -> None:
    parse, names = Parser(), Names()
    parsed = ParsedFunctions(parse)
    first, second = parsed(adder(1, names=names)), parsed(adder(1000, names=names))
    assert parse.count == 1
    assert (result(first, 5), result(second, 5), result(first, 5)) == (6, 1005, 6)


def test_a_function_is_parsed_again_if_what_decides_is_another_object() -> None:
    parse = Parser()
    parsed = ParsedFunctions(parse)
    parsed(adder(1, names=Names()))
    parsed(adder(1, names=Names()))
    assert parse.count == 2
