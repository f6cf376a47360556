"""Values of a page: facts, tables and figures. A figure draws columns of a table of the page.

A source says where a number comes from. Each source has one colour and one mark on all pages, so a prediction
never looks like a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Cell = float | int | str | bool | None


class Source(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    NOISY = "noisy"  # measured while other work disturbed it
    PREDICTED = "predicted"
    VENDOR = "vendor"  # measured, of another implementation
    LIMIT = "limit"  # of the hardware, from the figures of the target
    PLAIN = "plain"  # counted or chosen


@dataclass(frozen=True, slots=True)
class PageColumn:
    """A column of a table. `unit` is empty for texts and counts; `is_parameter`: of a config."""

    title: str
    values: Sequence[Cell]
    unit: str = ""
    source: Source = Source.PLAIN
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class PageTable:
    """Columns of one length, by key. `rows` says what its rows are, in the plural."""

    rows: str
    columns: Mapping[str, PageColumn]

    def __post_init__(self) -> None:
        lengths = {key: len(column.values) for key, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a table of {self.rows} differ in length: {lengths}")

    def __len__(self) -> int:
        return next((len(column.values) for column in self.columns.values()), 0)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Keys of the columns of a config."""
        return tuple(key for key, column in self.columns.items() if column.is_parameter)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of numbers. `is_log` is how it is shown at first, where all numbers are above 0."""

    title: str
    unit: str = ""
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Points:
    """A point for each row that has `x` and `y`. Each is the key of a column.

    Attributes:
        unless: key of a column; rows that have a value there are left out.
        error: key of a column with one sigma as a share of `y`, drawn as a whisker.
        label: key of a column with texts that stand beside the points.
    """

    name: str
    source: Source
    x: str
    y: str
    unless: str = ""
    error: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """A line of horizontal steps through the rows that have `x` and `y`."""

    name: str
    source: Source
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line through given points, such as a limit of the hardware."""

    name: str
    source: Source
    points: tuple[tuple[float, float], ...]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two lines: x, lowest and highest y of each point."""

    name: str
    source: Source
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Plane:
    """Points and lines over two axes."""

    x: Axis
    y: Axis
    layers: tuple[Points | Steps | Line | Band, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """Bars of one series: keys of the columns with its values and, if known, their intervals."""

    name: str
    source: Source
    value: str
    low: str = ""
    high: str = ""


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars, one of each series for each row; `label` is the key of the column with their names."""

    axis: Axis
    label: str
    series: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Coloured cells over two columns of choices; a cell shows the least value of its rows.

    Attributes:
        rows, columns: keys of the columns that may be chosen. If there are several, the reader chooses.
        values: columns with the values of cells, the preferred one first.
        is_least_best: a small value is good.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[Bar, ...]
    title: str
    unit: str
    is_least_best: bool = True


@dataclass(frozen=True, slots=True)
class Parallel:
    """Parallel coordinates: a line for each row through its values of `axes`, then its time.

    `values` are columns with times, the preferred one first.
    """

    axes: tuple[str, ...]
    values: tuple[Bar, ...]
    title: str
    unit: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """Spans of time in rows, one span for each row of the table that has a length.

    Attributes:
        axis: of time.
        lane: key of the column with the names of rows, which are drawn in the order of the table.
        label: key of the column with the texts of spans.
        start: key of the column with the times at which spans start.
        series: columns with the lengths of spans.
        waits: a column with the lengths of spans in which nothing is done.
        part, of: only rows whose column `part` is `of`; "": all rows.
    """

    axis: Axis
    lane: str
    label: str
    start: str
    series: tuple[Bar, ...]
    waits: tuple[Bar, ...] = ()
    part: str = ""
    of: str = ""


Chart = Plane | BarChart | Matrix | Parallel | Lanes


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A plot with its table.

    Attributes:
        key: unique on the page; names its state and its downloads.
        title: what it shows.
        text: how to read it.
        table: key of the table on the page that it draws.
        charts: by name; if there are several, the reader chooses one.
        choice: what is chosen by these names.
        columns: keys of the columns that its own table and its hints show.
    """

    key: str
    title: str
    text: str
    table: str
    charts: Mapping[str, Chart]
    columns: tuple[str, ...]
    choice: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values, such as the environment."""

    title: str
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Texts:
    """Paragraphs under a title. A warning is what a reader of the figures must not miss."""

    title: str
    lines: Sequence[str]
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All that a page shows, in its order. `render.html` makes the text of its file."""

    title: str
    subtitle: str
    parts: Sequence[PageFigure | Facts | Texts]
    tables: Mapping[str, PageTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in self.parts:
            if isinstance(part, PageFigure):
                unknown = set(part.columns) - set(self.tables[part.table].columns)
                if unknown:
                    raise ValueError(f"figure {part.key}: table {part.table} has no column {unknown}")
