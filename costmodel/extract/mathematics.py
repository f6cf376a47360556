"""Costs of math functions in lane operations.

The counts of instructions are those of CUDA's default build (no fast math), read off the PTX that nvcc 13.0
generates for kernels of a single function. AMD's counts differ little at this level. Those of nvcc's fast
math are read off the machine code of such kernels (nvcc 13.0, sm_90a).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .expressions import call_name

DOUBLE_BITS = 64


class MathCost(NamedTuple):
    """Operations of one function on one lane."""

    special: float  # operations of the special-function unit
    vector: float  # instructions beside them
    double: float = 0.0  # those of `vector` that are of float64, at half the rate of float32


MATH: Mapping[str, MathCost] = {
    "exp2": MathCost(1, 3),  # range check, two scalings
    "exp": MathCost(1, 5),
    "exp10": MathCost(1, 6),
    "log2": MathCost(1, 6),
    "log": MathCost(1, 12),
    "log10": MathCost(1, 12),
    "log1p": MathCost(1, 14),
    "sqrt": MathCost(1, 7),
    "rsqrt": MathCost(1, 3),
    "sin": MathCost(0, 26),
    "cos": MathCost(0, 26),
    "tan": MathCost(1, 28),
    "tanh": MathCost(2, 14),
    "sigmoid": MathCost(2, 14),
    "erf": MathCost(1, 18),
    "pow": MathCost(2, 75),
    "atan": MathCost(1, 20),
    "divide": MathCost(1, 8),  # reciprocal, two Newton steps, range check
    "rcp": MathCost(1, 6),
    "fast_special": MathCost(1, 0),  # __expf and similar functions: one instruction, at most with a scaling
    "fast_special_scaled": MathCost(1, 1),
    "simple": MathCost(0, 1),  # abs, floor, ceil, round, fma, min, max, ...
    "packed": MathCost(0, 1),
}


def is_fast(flags: Iterable[str]) -> bool:
    """Whether these options of the device compiler approximate the functions of float32."""
    return any(flag.lstrip("-") == "use_fast_math" for flag in flags)  # nvcc takes it with one dash or two


# the functions of float32 that fast math changes: approximations, without range checks
FAST_MATH: Mapping[str, MathCost] = {
    "exp2": MathCost(1, 0),
    "exp": MathCost(1, 1),
    "exp10": MathCost(1, 1),
    "log2": MathCost(1, 0),
    "log": MathCost(1, 1),
    "log10": MathCost(1, 1),
    "sqrt": MathCost(1, 0),
    "rsqrt": MathCost(1, 0),
    "sin": MathCost(1, 1),
    "cos": MathCost(1, 1),
    "tan": MathCost(3, 2),
    "tanh": MathCost(1, 0),
    "sigmoid": MathCost(2, 2),
    "pow": MathCost(2, 1),
    "divide": MathCost(1, 1),
    "rcp": MathCost(1, 0),
}

# The functions of float64, for usual values: polynomials, most of whose instructions load their coefficients.
# Read off the machine code of kernels of a single function (nvcc 13.0, sm_90a). Fast math changes none.
DOUBLE_MATH: Mapping[str, MathCost] = {
    "exp2": MathCost(0, 61, 19),
    "exp": MathCost(0, 60, 18),
    "exp10": MathCost(0, 68, 20),
    "log2": MathCost(1, 88, 32),
    "log": MathCost(1, 82, 30),
    "log10": MathCost(1, 88, 32),
    "log1p": MathCost(2, 134, 53),
    "sqrt": MathCost(1, 21, 8),
    "rsqrt": MathCost(1, 15, 5),
    "sin": MathCost(0, 50, 17),
    "cos": MathCost(0, 51, 17),
    "tan": MathCost(1, 88, 32),
    "tanh": MathCost(2, 99, 34),
    "sigmoid": MathCost(1, 76, 25),
    "erf": MathCost(1, 122, 42),
    "pow": MathCost(1, 215, 90),
    "atan": MathCost(1, 80, 28),
    "divide": MathCost(1, 16, 8),
    "rcp": MathCost(1, 14, 5),
    "simple": MathCost(0, 1, 1),
}

_SIMPLE = [
    "fabs",
    "abs",
    "floor",
    "ceil",
    "round",
    "trunc",
    "nearbyint",
    "rint",
    "fma",
    "ieee_fmaf",
    "ieee_add",
    "ieee_sub",
    "ieee_mul",
    "fmul",
    "max_nan",
    "min_nan",
    "clamp",
    "isnan",
    "isinf",
    "isfinite",
    "copysign",
    "popcount",
    "clz",
    "__ffs",
    "__fns",
    "fmod",
    "hmax",
    "hmin",
    "round_ties_away_from_zero",
    "pow_of_int",
    "likely",
    "__saturate",
]

_FUNCTIONS = (
    *("exp2", "exp", "exp10", "log2", "log", "log10", "log1p", "pow"),
    *("sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "atan", "erf", "sigmoid"),
)
_ROUNDINGS = ("rn", "rz", "ru", "rd")

_NAMES: Mapping[str, str] = {
    **{name: name for name in _FUNCTIONS},
    **dict.fromkeys(
        ("__exp", "__exp10", "__log", "__log2", "__log10", "__tan", "__fdivide"), "fast_special_scaled"
    ),
    **dict.fromkeys(("__sin", "__cos", "fast_rcp", "ex2", "hexp2", "h2exp2"), "fast_special"),
    **dict.fromkeys(("ieee_fsqrt",), "sqrt"),
    **dict.fromkeys(("ieee_frsqrt",), "rsqrt"),
    **dict.fromkeys(("ieee_fdiv", "fdivide"), "divide"),
    **dict.fromkeys(("ieee_frcp",), "rcp"),
    **dict.fromkeys(_SIMPLE, "simple"),
    **{
        f"__f{name}_{rounding}": function
        for name, function in (("div", "divide"), ("rcp", "rcp"), ("sqrt", "sqrt"), ("rsqrt", "rsqrt"))
        for rounding in _ROUNDINGS
    },
    **dict.fromkeys(
        ("add2", "sub2", "mul2", "fma2", "max2", "min2", "max2_nan", "min2_nan", "abs2"), "packed"
    ),
}
# function by its name in the IR, without the dialect prefix, or in CUDA; C's names for float end with f
MATH_NAMES: Mapping[str, str] = {**{name + "f": function for name, function in _NAMES.items()}, **_NAMES}


def math_function(call: Any) -> str | None:
    """The function of `MATH` that a call computes; None for other calls."""
    return MATH_NAMES.get(call_name(call).rpartition(".")[2])
