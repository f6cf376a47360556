"""Draws docs/line.svg and docs/lanes.svg: `python docs/draw_line.py`. A test checks that both are up to date.

line.svg has the values that lead from a workload to a dispatched kernel, with the function of each arrow.
lanes.svg has the tuner, an executor and the two lanes on which jobs run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent
FONT = "-apple-system,'Segoe UI','Helvetica Neue','DejaVu Sans',Arial,sans-serif"
BLUE, VIOLET, ORANGE, GREEN, GREY = "#1864ab", "#5f3dc4", "#d9480f", "#2b8a3e", "#495057"
PALE = {BLUE: "#e7f5ff", VIOLET: "#f3f0ff", ORANGE: "#fff4e6", GREEN: "#ebfbee", GREY: "#f8f9fa"}


@dataclass(frozen=True)
class Box:
    """A named box. `x`, `y`: its upper left corner, in pixels; `note`: a second line."""

    x: float
    y: float
    width: float
    height: float
    name: str
    note: str
    colour: str

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def svg(self) -> str:
        centre = self.y + self.height / 2
        return (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" '
            f'fill="{PALE[self.colour]}" stroke="{self.colour}" stroke-width="1.5"/>'
            + _text(self.middle, centre - 3, self.name, "name", self.colour)
            + _text(self.middle, centre + 14, self.note, "note")
        )


def line() -> str:
    """The values of the line and the functions between them."""
    width, height, gap, top, lower = 150, 54, 74, 62, 198
    first = [
        ("Workload, Target", "sizes, dtype; the chip", GREY),
        ("Candidate", "one config of a template", BLUE),
        ("Lowered IR", "TVM IR, from the CPU", BLUE),
        ("KernelProfile", "work by role and loop", BLUE),
        ("Prediction", "time and uncertainty", BLUE),
    ]
    second = [
        ("Dispatcher", "a kernel for each shape", GREEN),
        ("Database", "records of all sessions", GREEN),
        ("TrialRecord", "failures included", GREY),
        ("Measurement", "samples, correctness", ORANGE),
        ("BuildResult", "library, registers, spills", ORANGE),
    ]
    columns = [20 + number * (width + gap) for number in range(5)]
    above = [Box(x, top, width, height, *names) for x, names in zip(columns, first, strict=True)]
    below = [Box(x, lower, width, height, *names) for x, names in zip(columns, second, strict=True)]
    parts = [
        _band(
            above[1].x - 12,
            20,
            above[4].right + 12,
            top + height + 14,
            BLUE,
            "every candidate: CPU only, no GPU needed",
        ),
        _band(below[3].x - 12, lower - 14, below[4].right + 12, lower + height + 42, ORANGE, ""),
        _text(
            (below[3].x + below[4].right) / 2,
            lower + height + 30,
            "the few most promising: compiler and device",
            "band",
            ORANGE,
        ),
    ]
    for a, b, label in zip(above, above[1:], ("space, ask", "lower", "profile", "predict"), strict=False):
        parts.append(_arrow([(a.right, a.y + 27), (b.x, b.y + 27)], GREY))
        parts.append(_text((a.right + b.x) / 2, a.y + 18, label, "label"))
    for a, b, label in zip(below, below[1:], ("kernel", "record", "", "measure"), strict=False):
        parts.append(_arrow([(b.x, b.y + 27), (a.right, a.y + 27)], GREY))
        parts.append(_text((a.right + b.x) / 2, a.y + 18, label, "label"))
    start, end = above[4], below[4]
    parts.append(_arrow([(start.middle + 30, start.bottom), (end.middle + 30, end.y)], GREY))
    parts.append(_text(start.middle + 36, (start.bottom + end.y) / 2 + 10, "build", "label", anchor="start"))
    back = (start.bottom + end.y) / 2 + 5
    way = [
        (below[3].middle, lower),
        (below[3].middle, back),
        (start.middle - 20, back),
        (start.middle - 20, start.bottom),
    ]
    parts.append(_arrow(way, ORANGE, dashed=True))
    parts.append(_text(below[3].middle + 108, back - 6, "corrects other predictions", "label"))
    parts += [box.svg() for box in (*above, *below)]
    return _picture(
        "From a workload and a target to a dispatched kernel", columns[-1] + width + 32, 306, parts
    )


def lanes() -> str:
    """The tuner as a source of jobs, an executor, and its two lanes over time."""
    tuner = Box(20, 78, 150, 64, "Tuner", "a source of jobs", GREY)
    executor = Box(290, 78, 150, 64, "Executor", "this machine or a cluster", GREY)
    left, right = 615, 1105
    parts = [
        _arrow([(executor.x, 96), (tuner.right, 96)], GREY),
        _text((tuner.right + executor.x) / 2, 88, "next(lane)", "label"),
        _arrow([(tuner.right, 112), (executor.x, 112)], BLUE),
        _text((tuner.right + executor.x) / 2, 126, "job", "label"),
        _arrow(
            [
                (executor.middle, executor.bottom),
                (executor.middle, 178),
                (tuner.middle, 178),
                (tuner.middle, 142),
            ],
            ORANGE,
        ),
        _text((tuner.middle + executor.middle) / 2, 171, "events: the outcome of each job", "label"),
        _arrow([(executor.right, 98), (left - 138, 74)], GREY),
        _arrow([(executor.right, 122), (left - 138, 152)], GREY),
        _text(left - 74, 70, "lane PREPARE", "name", BLUE),
        _text(left - 74, 86, "any core, many at once", "note"),
        _text(left - 74, 150, "lane DEVICE", "name", ORANGE),
        _text(left - 74, 166, "alone on a device", "note"),
        _band(left, 34, right, 110, BLUE, ""),
        _band(left, 130, right, 178, ORANGE, ""),
    ]
    blue, violet, orange, red = "#74c0fc", "#b197fc", "#ffa94d", "#ff8787"
    rows = (
        (42, [("L", 0, 52), ("L", 56, 60), ("B", 120, 110), ("L", 234, 48), ("B", 286, 96)]),
        (74, [("L", 0, 70), ("B", 74, 118), ("L", 196, 56), ("B", 256, 110)]),
        (140, [("M", 196, 44), ("M", 244, 40), ("M", 288, 46), ("M", 372, 40), ("C", 420, 62)]),
    )
    colours = {"L": blue, "B": violet, "M": orange, "C": red}
    for y, jobs in rows:
        for kind, start, width in jobs:
            x = left + 4 + start
            parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="28" rx="4" fill="{colours[kind]}"/>')
            parts.append(_text(x + width / 2, y + 19, kind, "job"))
    parts.append(_arrow([(left, 196), (right, 196)], GREY))
    parts.append(_text(right - 16, 212, "time", "label", anchor="end"))
    x = left
    for kind, meaning in (("L", "lower"), ("B", "build"), ("M", "measure"), ("C", "compare finalists")):
        parts.append(f'<rect x="{x}" y="204" width="12" height="12" rx="3" fill="{colours[kind]}"/>')
        parts.append(_text(x + 17, 214, meaning, "label", anchor="start"))
        x += 42 + 6.5 * len(meaning)
    parts += [tuner.svg(), executor.svg()]
    return _picture("The tuner, an executor and its two lanes", right + 20, 230, parts)


def _text(x: float, y: float, text: str, kind: str, colour: str = "", anchor: str = "middle") -> str:
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{fill}>{escape(text)}</text>'


def _band(left: float, top: float, right: float, bottom: float, colour: str, title: str) -> str:
    shape = (
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" rx="10" '
        f'fill="{PALE[colour]}" fill-opacity="0.6"/>'
    )
    return shape + (_text((left + right) / 2, top + 24, title, "band", colour) if title else "")


def _arrow(points: Iterable[tuple[float, float]], colour: str, dashed: bool = False) -> str:
    way = "L".join(f"{x:.0f},{y:.0f}" for x, y in points)
    style = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="M{way}" stroke="{colour}" marker-end="url(#{_marker(colour)})"{style}/>'


def _marker(colour: str) -> str:
    return f"head-{colour[1:]}"


def _picture(title: str, width: float, height: float, parts: list[str]) -> str:
    style = (
        f"text{{font:12px {FONT};fill:#343a40}}.name{{font-size:14px;font-weight:600}}"
        ".note{font-size:11px;fill:#868e96}"
        ".label{font-size:11.5px;fill:#495057}.band{font-size:12.5px}.job{font-weight:600;fill:#212529}"
        "path{fill:none;stroke-width:1.5}"
    )
    heads = "".join(
        f'<marker id="{_marker(c)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto">'
        f'<path d="M0,0L8,4L0,8z" style="fill:{c};stroke:none"/></marker>'
        for c in (GREY, BLUE, ORANGE)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}">\n<title>{escape(title)}</title>\n<style>{style}</style>\n<defs>{heads}</defs>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


PICTURES = {"line.svg": line, "lanes.svg": lanes}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
