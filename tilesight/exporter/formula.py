"""Sizes as formulas of a call's sizes, written as C, C++ or Python.

Shapes of tensors and of scratch memory are computed by Python code of operators and templates. That code is
run once with formulas in place of numbers, and what it returns is written into the exported sources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A whole number that depends on sizes: the size called `left`, or an operation on two values.

    Divisions round down. Their operands are never negative, so that they are the same in all languages.
    """

    operation: str  # size, +, -, *, /
    left: Any
    right: Any = None

    def text(self, division: str = "/") -> str:
        """The formula in C, or in Python with `division="//"`."""
        if self.operation == "size":
            return str(self.left)
        sign = division if self.operation == "/" else self.operation
        return f"({text_of(self.left, division)} {sign} {text_of(self.right, division)})"

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value for these sizes."""
        if self.operation == "size":
            return sizes[self.left]
        return int(_BINARY[self.operation](value_at(self.left, sizes), value_at(self.right, sizes)))

    def __add__(self, other: Size) -> Size:
        return self if other == 0 else Formula("+", self, other)

    def __radd__(self, other: int) -> Size:
        return self + other

    def __sub__(self, other: Size) -> Size:
        return self if other == 0 else Formula("-", self, other)

    def __rsub__(self, other: int) -> Size:
        return Formula("-", other, self)

    def __mul__(self, other: Size) -> Size:
        return self if other == 1 else Formula("*", self, other)

    def __rmul__(self, other: int) -> Size:
        return self * other

    def __floordiv__(self, other: Size) -> Size:
        return self if other == 1 else Formula("/", self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return Formula("/", other, self)

    def __mod__(self, other: Size) -> Size:
        return self - self // other * other

    def __neg__(self) -> Size:
        if self.operation == "/" and isinstance(self.left, Formula) and self.left.is_negated:
            rounded: Size = (self.left.right + self.right - 1) // self.right  # -(-a // b) rounds a / b up
            return rounded
        return Formula("-", 0, self)

    @property
    def is_negated(self) -> bool:
        return self.operation == "-" and self.left == 0


Size = int | Formula


def size(name: str) -> Formula:
    """The size called `name`."""
    return Formula("size", name)


def text_of(value: Size, division: str = "/") -> str:
    """A number or formula in C, or in Python with `division="//"`."""
    return value.text(division) if isinstance(value, Formula) else str(value)


def value_at(value: Size, sizes: Mapping[str, int]) -> int:
    """The value of a number or formula for these sizes."""
    return value.at(sizes) if isinstance(value, Formula) else value


def product(factors: Sequence[Size]) -> Size:
    """The product of numbers and formulas, the numbers multiplied beforehand."""
    found: Size = math.prod(factor for factor in factors if not isinstance(factor, Formula))
    for factor in factors:
        if isinstance(factor, Formula):
            found = factor * found if isinstance(found, int) else found * factor
    return found
