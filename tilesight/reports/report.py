"""A report: paragraphs, lines and tables, as text of a given width or as HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from . import text_table

WIDTH = 100  # characters of a paragraph at most, and of tables where no other width is given

_HTML = '<pre style="white-space:pre;line-height:normal;font-family:monospace">{code}</pre>'
# from a width (None: as wide as the rows) to lines, each with whether it is bold
_Part = Callable[[int | None], Iterator[tuple[str, bool]]]


class Report:
    """Text for people, made part by part."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def text(self, text: str = "", *, bold: bool = False) -> None:
        """Add a paragraph, which is wrapped."""
        self._parts.append(
            lambda width: ((line, bold) for line in text_table.fold(text, min(WIDTH, width or WIDTH)))
        )

    def line(self, text: str) -> None:
        """Add a line that is not wrapped, so that it can be copied."""
        self._parts.append(lambda _width: iter([(text, False)]))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        right: Sequence[str] = (),
        folded: Sequence[str] = (),
    ) -> None:
        """Add a table. `right` names right-aligned columns; columns in `folded` share the remaining width."""

        def lines(width: int | None) -> Iterator[tuple[str, bool]]:
            found = text_table.lines(columns, rows, right, folded, width)
            if found is None:
                assert width is not None  # only a width can be too small
                yield from ((line, False) for line in text_table.blocks(columns, rows, width))
                return
            heading, *others = found
            yield heading, True
            yield from ((line, False) for line in others)

        self._parts.append(lines)

    def add(self, other: Report) -> None:
        """Add all parts of another report."""
        self._parts += other._parts

    def lines(self, width: int | None = WIDTH) -> Iterator[tuple[str, bool]]:
        """Its lines in `width` characters, each with whether it is bold.

        Without a width (None), each row of a table is one line.
        """
        for part in self._parts:
            yield from part(width)

    def plain(self, width: int = WIDTH) -> str:
        """Its text without emphasis."""
        return "\n".join(line for line, _ in self.lines(width))

    def html(self, width: int = WIDTH) -> str:
        """Its text as one HTML element."""
        import io

        from rich.console import Console
        from rich.text import Text

        console = Console(record=True, file=io.StringIO(), width=width, force_jupyter=False)
        for line, bold in self.lines(width):
            console.print(Text(line, style="bold" if bold else ""), soft_wrap=True)
        return console.export_html(code_format=_HTML, inline_styles=True)


class Reported(ABC):
    """A value with a report: `print` shows it as the command line does, and notebooks display it."""

    __slots__ = ()

    @abstractmethod
    def report(self) -> Report:
        """The report."""

    def __str__(self) -> str:
        return self.report().plain()

    def _repr_html_(self) -> str:
        return self.report().html()
