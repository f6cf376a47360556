"""Reads UBJSON, the binary JSON in which XGBoost stores boosters: what it writes, and only whole files."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

MOST_LEVELS = 12  # of nesting; a booster has 8
_NUMBERS = {"i": ">b", "U": ">B", "I": ">h", "l": ">i", "L": ">q", "d": ">f", "D": ">d"}


def read_ubjson(content: bytes) -> Any:
    """The value in `content`: arrays of one type are NumPy arrays, others lists.

    Raises `ValueError` if `content` is anything else than one whole value.
    """
    reader = _Reader(content)
    try:
        found = reader.value(MOST_LEVELS)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it ends early or holds no text ({error})") from error
    if reader.at != len(content):
        raise ValueError(f"{len(content) - reader.at} bytes follow its end")
    return found


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def value(self, levels: int) -> Any:
        if levels == 0:
            raise ValueError(f"it is nested in more than {MOST_LEVELS} levels")
        marker = self._marker()
        if marker in _NUMBERS:
            return self._number(marker)
        match marker:
            case "S":
                return self._text()
            case "T" | "F":
                return marker == "T"
            case "N":
                return None
            case "{":
                return self._object(levels)
            case "[" if self._peek() == "$":
                return self._typed_array()
            case "[" if self._peek() == "#":
                self.at += 1
                return [self.value(levels - 1) for _ in range(self._count(1))]
            case "[":
                return self._open_array(levels)
        raise ValueError(f"byte {self.at - 1} is no marker of a value")

    def _object(self, levels: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != "}":
            name = self._text()
            if name in found:
                raise ValueError(f"'{name}' occurs twice")
            found[name] = self.value(levels - 1)
        self.at += 1
        return found

    def _open_array(self, levels: int) -> list[Any]:
        found = []
        while self._peek() != "]":
            found.append(self.value(levels - 1))
        self.at += 1
        return found

    def _typed_array(self) -> Any:
        self.at += 1
        kind = self._marker()
        if kind not in _NUMBERS or self._marker() != "#":
            raise ValueError(f"byte {self.at - 1} is no type or count of an array")
        size = struct.calcsize(_NUMBERS[kind])
        count = self._count(size)
        found = np.frombuffer(self.content, _NUMBERS[kind], count, self.at)
        self.at += count * size
        return found

    def _text(self) -> str:
        length = self._count(1)
        found = self.content[self.at : self.at + length].decode("utf-8")
        self.at += length
        return found

    def _count(self, size: int) -> int:
        """A number of items of at least `size` bytes, which the rest of the content must have room for."""
        marker = self._marker()
        count = self._number(marker) if marker in "iUIlL" else -1
        if not 0 <= count <= (len(self.content) - self.at) // size:
            raise ValueError(f"the count before byte {self.at} is none, or more than the file has")
        return int(count)

    def _number(self, marker: str) -> int | float:
        layout = _NUMBERS[marker]
        (found,) = struct.unpack_from(layout, self.content, self.at)
        self.at += struct.calcsize(layout)
        return found  # type: ignore[no-any-return]

    def _marker(self) -> str:
        self.at += 1
        return chr(self.content[self.at - 1])

    def _peek(self) -> str:
        return chr(self.content[self.at])
